# Shared by try and test: POSIX sh, nothing but a Debian 12 base. Sourced, not run.
# shellcheck shell=sh

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
state=${VIRTGPU_SETUP_DIR:-/var/lib/virtgpu-setup}
policy=/usr/sbin/policy-rc.d

# What the real libvirtd over the simulated host needs. No package here brings a
# system unit for libvirt: the private libvirtd runs without systemd.
system_packages="python3 python3-venv python3-libvirt ca-certificates \
libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 mdevctl pci.ids"

# From libvirt 10 on Debian has a package of its own for each driver; Debian 12 itself has 9.
split_packages="libvirt-daemon-driver-nodedev libvirt-daemon-driver-secret"
split_since=10

# The packages that this system's own libvirt needs.
libvirt_packages() {
    candidate=$(apt-cache policy libvirt-daemon 2>/dev/null | awk '$1 == "Candidate:" {print $2}')
    printf '%s' "$system_packages"
    if dpkg --compare-versions "${candidate:-0}" ge "$split_since"; then
        printf ' %s' "$split_packages"
    fi
}

say() { printf '%s\n' "$*" >&2; }
step() { printf '\n\033[1m== %s\033[0m\n' "$*" >&2; }
[ -t 2 ] && [ -z "${NO_COLOR:-}" ] || step() { printf '\n== %s\n' "$*" >&2; }

# die CODE SENTENCE HINT: the same exit codes as virtgpu's own.
die() {
    code=$1
    say "error: $2"
    [ -z "${3:-}" ] || say "hint: $3"
    exit "$code"
}

need_root() {
    [ "$(id -u)" = 0 ] || die 9 "$(basename "$0") installs packages and needs root" "run it with sudo"
}

need_debian() {
    command -v apt-get >/dev/null 2>&1 && command -v dpkg-query >/dev/null 2>&1 ||
        die 9 "this is no Debian: apt-get is missing" \
            "install Python 3.11, libvirt, QEMU and mdevctl yourself, then: pip install 'virtgpu[all]'"
}

# A simulated /sys needs FUSE and private namespaces; containers often lack one.
need_namespaces() {
    [ -e /dev/fuse ] || modprobe fuse 2>/dev/null || :
    [ -c /dev/fuse ] && (: <>/dev/fuse) 2>/dev/null ||
        die 9 "/dev/fuse is missing or may not be opened" \
            "on a host: modprobe fuse; in a container: start it with --device /dev/fuse --cap-add SYS_ADMIN"
    unshare --mount --pid --net --ipc --uts --fork true 2>/dev/null ||
        die 9 "new namespaces are not allowed here" \
            "in a container: start it with --privileged, or --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
}

# -- packages

missing_packages() {
    for name in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed ||
            printf '%s ' "$name"
    done
}

# While packages are installed no service may start; afterwards none that came
# with them may be enabled. A policy-rc.d that was there comes back as it was.
deny_services() {
    mkdir -p "$state"
    restore_policy
    if [ -e "$policy" ] || [ -L "$policy" ]; then
        cp -a "$policy" "$state/policy-rc.d.before"
        rm -f "$policy"
    fi
    printf '#!/bin/sh\n# written by virtgpu, removed after the installation\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    enabled_units >"$state/units.before"
}

allow_services() {
    [ -e "$state/units.before" ] || return 0
    enabled_units | while read -r link; do
        grep -qxF "$link" "$state/units.before" || rm -f "$link"
    done
    rm -f "$state/units.before"
    restore_policy
}

restore_policy() {
    if grep -qs 'written by virtgpu' "$policy"; then rm -f "$policy"; fi
    if [ -e "$state/policy-rc.d.before" ]; then mv "$state/policy-rc.d.before" "$policy"; fi
}

enabled_units() { find /etc/systemd/system /etc/rc?.d -type l 2>/dev/null | sort; }

list_packages() {
    apt-get install -s --no-install-recommends "$@" 2>/dev/null | awk '$1 == "Inst" {print $2}' |
        while read -r name; do
            kib=$(apt-cache show --no-all-versions "$name" | awk '$1 == "Installed-Size:" {print $2; exit}')
            printf '  %-34s %8s KiB\n' "$name" "${kib:-?}"
        done >&2
    apt-get install --assume-no --no-install-recommends "$@" 2>/dev/null |
        grep -E '^(Need to get|After this operation)' | sed 's/^/  /' >&2 || :
}

install_packages() {
    wanted=$(missing_packages "$@")
    [ -n "$wanted" ] || { say "all packages are there"; return 0; }
    say "getting the package lists"
    apt-get update -q >"$state/apt.log" 2>&1 || {
        tail -n 5 "$state/apt.log" >&2
        die 9 "apt-get update failed" "see $state/apt.log"
    }
    say "these will be installed, with their size on disk:"
    # shellcheck disable=SC2086
    list_packages $wanted
    dpkg-query -W -f '${Package} ${db:Status-Status}\n' | awk '$2 == "installed" {print $1}' |
        sort >"$state/packages.now"
    [ -e "$state/packages.before" ] || cp "$state/packages.now" "$state/packages.before"
    trap 'allow_services' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    deny_services
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $wanted \
        >"$state/apt.log" 2>&1 || {
        tail -n 15 "$state/apt.log" >&2
        die 9 "the packages could not be installed" "see $state/apt.log"
    }
    allow_services
    trap - EXIT INT TERM HUP
}

# -- the virtual environment

# make_venv DIR EXTRAS: virtgpu's wheel with its libraries; again only when the source changed.
make_venv() {
    venv=$1
    sources=$(find "$root/setup.cfg" "$root/pyproject.toml" "$root/virtgpu" "$root/xml_templates" \
        "$root/policies" "$root/scripts" -type f ! -name '*.pyc' -exec cksum {} + | sort | cksum)
    [ "$(cat "$venv/.built-from" 2>/dev/null)" = "$sources $2" ] && return 0
    [ -x "$venv/bin/python" ] || /usr/bin/python3 -m venv --system-site-packages "$venv"
    say "building the wheel and getting its libraries (about 60 MB at first)"
    rm -rf "$venv/wheel"
    "$venv/bin/pip" wheel -q --no-deps -w "$venv/wheel" "$root" >"$venv/pip.log" 2>&1 &&
        "$venv/bin/pip" install -q --force-reinstall --no-deps "$venv"/wheel/virtgpu-*.whl >>"$venv/pip.log" 2>&1 &&
        for wheel in "$venv"/wheel/virtgpu-*.whl; do
            "$venv/bin/pip" install -q "$wheel$2" >>"$venv/pip.log" 2>&1
        done || {
        tail -n 15 "$venv/pip.log" >&2
        die 9 "virtgpu could not be installed into $venv" "see $venv/pip.log"
    }
    rm -rf "$root/build" "$root"/*.egg-info
    printf '%s %s' "$sources" "$2" >"$venv/.built-from"
}
