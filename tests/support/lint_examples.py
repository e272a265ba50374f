"""For each rule of the linter a domain that breaks it and one that does not, on one small host."""

from __future__ import annotations

from typing import NamedTuple

from virtgpu.domain.lint import Context
from virtgpu.domain.read import Guest, HostDevice
from virtgpu.domain.target import Target
from virtgpu.model.gpu import NumaNode
from virtgpu.model.pci import PciAddress
from virtgpu.model.view import HostFunction, HostView

MDEV = "4b200000-0000-4000-8000-000000000001"
OTHER = "4b200000-0000-4000-8000-000000000002"


def pci(text: str) -> PciAddress:
    return PciAddress.parse(text)


def _function(
    at: str,
    kind: str,
    vendor: str,
    driver: str | None,
    group: int,
    node: int = 0,
    pf: str | None = None,
    vgpu: str | None = None,
) -> HostFunction:
    return HostFunction(
        address=pci(at), class_code=kind, vendor_id=vendor, driver=driver, iommu_group=group,
        numa_node=node, pf=None if pf is None else pci(pf), vgpu_type=vgpu,
    )  # fmt: skip


_FUNCTIONS = (
    _function("0000:00:1c.0", "060400", "8086", "pcieport", 1),
    _function("0000:03:00.0", "030000", "1a03", "ast", 3),
    _function("0000:17:00.0", "030200", "10de", "nvidia", 10),
    _function("0000:18:00.0", "030000", "10de", "vfio-pci", 11),
    _function("0000:18:00.1", "040300", "10de", "snd_hda_intel", 11),
    _function("0000:3b:00.0", "020000", "8086", "ice", 20),
    _function("0000:3b:01.0", "020000", "8086", "iavf", 21, pf="0000:3b:00.0"),
    _function("0000:82:00.0", "030200", "10de", "nvidia", 30, 1),
    _function("0000:82:00.4", "030200", "10de", "nvidia", 31, 1, "0000:82:00.0", "1147"),
    _function("0000:82:00.5", "030200", "10de", "nvidia", 32, 1, "0000:82:00.0", "0"),
)
VIEW = HostView(
    label="example",
    functions={one.address: one for one in _FUNCTIONS},
    mdevs={MDEV: pci("0000:17:00.0")},
    numa=(NumaNode(id=0, cpulist="0-3"), NumaNode(id=1, cpulist="4-7")),
    cpus="0-7",
    page_kib=(2048,),
    phys_bits=46,
)
HOST = Context(view=VIEW, exists=lambda path: path == "/there")
NEIGHBOUR = Guest(
    name="neighbour", uuid=None, devices=(HostDevice(pci=pci("0000:17:00.0"), managed=True),)
)


class Example(NamedTuple):
    """*bad* breaks the rule in *context*, *good* does not (in *better*, where it is another)."""

    bad: str
    good: str
    context: Context = Context()
    better: Context | None = None


def dom(
    devices: str = "",
    more: str = "",
    *,
    machine: str = "q35",
    os: str = "",
    os_attr: str = "",
    features: str = "<acpi/>",
    vcpu: str = "4",
    memory: str = "8",
    attr: str = "type='kvm'",
    metadata: str = "",
) -> str:
    return (
        f"<domain {attr}><name>g</name>{metadata}<memory unit='GiB'>{memory}</memory>"
        f"<vcpu>{vcpu}</vcpu>"
        f"<os{os_attr}><type arch='x86_64' machine='{machine}'>hvm</type>{os}</os>"
        f"<features>{features}</features>{more}"
        f"<devices>{devices}</devices></domain>"
    )


def at(slot: str, function: int = 0, more: str = "", bus: str = "0x00") -> str:
    return (
        f"<address type='pci' domain='0x0000' bus='{bus}' slot='{slot}'"
        f" function='0x{function}'{more}/>"
    )


def rng(place: str) -> str:
    return f"<rng model='virtio'><backend model='random'>/dev/urandom</backend>{place}</rng>"


def hostdev(where: str, inside: str = "", attr: str = "managed='yes'") -> str:
    domain, bus, rest = where.split(":")
    slot, function = rest.split(".")
    return (
        f"<hostdev mode='subsystem' type='pci' {attr}><source><address domain='0x{domain}'"
        f" bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source>{inside}</hostdev>"
    )


def mdev(uuid: str = MDEV, inside: str = "", attr: str = "model='vfio-pci'") -> str:
    return (
        f"<hostdev mode='subsystem' type='mdev' managed='no' {attr}><source>"
        f"<address uuid='{uuid}'/></source>{inside}</hostdev>"
    )


def control(model: str, index: int, inside: str = "") -> str:
    return f"<controller type='pci' index='{index}' model='{model}'>{inside}</controller>"


def osinfo(system: str) -> str:
    space = "http://libosinfo.org/xmlns/libvirt/domain/1.0"
    return (
        f"<metadata><o:libosinfo xmlns:o='{space}'><o:os id='http://microsoft.com/win/{system}'/>"
        "</o:libosinfo></metadata>"
    )


GPU, VGA, AUDIO = "0000:17:00.0", "0000:18:00.0", "0000:18:00.1"
NIC, NIC_VF = "0000:3b:00.0", "0000:3b:01.0"
PF, VF, EMPTY_VF = "0000:82:00.0", "0000:82:00.4", "0000:82:00.5"
VNC = "<graphics type='vnc'/>"
NONE = "<video><model type='none'/></video>"
VIDEO = "<video><model type='virtio'/></video>"
NUMA = "<cpu><numa><cell id='0' cpus='0-3' memory='8' unit='GiB'/></numa></cpu>"
INTEL = "<iommu model='intel'><driver {}/></iommu>"
NO_BALLOON = "<memballoon model='none'/>"
EFI = " firmware='efi'"
ON = " multifunction='on'"


def old(version: int) -> Context:
    return Context(target=Target(libvirt=version, qemu=7_002_000))


def sized(page: str, backing: str = "") -> str:
    return f"<memoryBacking><hugepages>{page}</hugepages>{backing}</memoryBacking>"


EXAMPLES = {
    "VG001": Example(dom("<nonsense/>"), dom()),
    "VG101": Example(dom(rng(at("0x04")) + rng(at("4"))), dom(rng(at("0x04")) + rng(at("0x05")))),
    "VG102": Example(
        dom(rng(at("0x04", 0, " multifunction='off'")) + rng(at("0x04", 1))),
        dom(rng(at("0x04", 0, ON)) + rng(at("0x04", 1))),
    ),
    "VG103": Example(
        dom(rng(at("0x04")) + rng(at("0x04", 1))),
        dom(rng(at("0x04", 0, ON)) + rng(at("0x04", 1))),
    ),
    "VG104": Example(dom(rng(at("0x04", 1))), dom(rng(at("0x1f", 1)))),
    "VG105": Example(dom(hostdev("0000:17:d6.0")), dom(hostdev(GPU))),
    "VG106": Example(
        dom(control("pcie-root-port", 1) + rng(at("0x01", bus="0x01"))),
        dom(control("pcie-root-port", 1) + rng(at("0x00", bus="0x01"))),
    ),
    "VG107": Example(
        dom(control("pcie-to-pci-bridge", 2) + hostdev(GPU, at("0x01", bus="0x02"))),
        dom(control("pcie-root-port", 2) + hostdev(GPU, at("0x00", bus="0x02"))),
    ),
    "VG108": Example(
        dom(hostdev(GPU, at("0x05"))),
        dom(control("pcie-root-port", 1) + hostdev(GPU, at("0x00", bus="0x01"))),
    ),
    "VG109": Example(
        dom(control("pcie-root-port", 1, at("0x02")) + rng(at("0x00", bus="0x01"))),
        dom(control("pcie-root-port", 1, at("0x02"))),
    ),
    "VG110": Example(
        dom(control("pcie-root-port", 1) * 2),
        dom(control("pcie-root-port", 1) + control("pcie-root-port", 2)),
    ),
    "VG111": Example(
        dom(hostdev(VGA, at("0x00", bus="0x01")) + hostdev(AUDIO, at("0x00", bus="0x02"))),
        dom(hostdev(VGA, at("0x00", 0, ON, "0x01")) + hostdev(AUDIO, at("0x00", 1, bus="0x01"))),
        HOST,
    ),
    "VG112": Example(dom(hostdev(VGA)), dom(hostdev(VGA) + hostdev(AUDIO)), HOST),
    "VG113": Example(dom(control("pcie-root", 0, at("0x02"))), dom(control("pcie-root", 0))),
    "VG114": Example(dom(control("pcie-root", 3)), dom(control("pcie-root", 0))),
    "VG115": Example(dom(control("pci-root", 0)), dom(control("pci-root", 0), machine="pc")),
    "VG116": Example(
        dom(hostdev(PF, at("0x00", 0, ON, "0x01")) + hostdev(VF, at("0x00", 4, bus="0x01"))),
        dom(hostdev(VF, at("0x00", bus="0x01"), "managed='no'")),
        HOST,
    ),
    "VG201": Example(dom(hostdev(GPU) * 2), dom(hostdev(GPU) + hostdev(VGA))),
    "VG202": Example(
        dom(hostdev(GPU)), dom(hostdev(VGA)), Context(others=(NEIGHBOUR,)),
    ),
    "VG203": Example(
        dom(hostdev(NIC_VF, attr="managed='no'")), dom(hostdev(VF, attr="managed='no'")), HOST
    ),
    "VG204": Example(dom(hostdev(VF)), dom(hostdev(VF, attr="managed='no'")), HOST),
    "VG205": Example(
        dom(hostdev(EMPTY_VF, attr="managed='no'")), dom(hostdev(VF, attr="managed='no'")), HOST
    ),
    "VG206": Example(dom(mdev(OTHER)), dom(mdev()), HOST),
    "VG207": Example(dom(hostdev("0000:99:00.0")), dom(hostdev(GPU)), HOST),
    "VG208": Example(dom(hostdev("0000:00:1c.0")), dom(hostdev(GPU)), HOST),
    "VG209": Example(dom(hostdev("0000:03:00.0")), dom(hostdev(GPU)), HOST),
    "VG210": Example(dom(hostdev(VGA)), dom(hostdev(VGA) + hostdev(AUDIO)), HOST),
    "VG211": Example(
        dom(hostdev(PF) + hostdev(VF, attr="managed='no'")),
        dom(hostdev(VF, attr="managed='no'")),
        HOST,
    ),
    "VG212": Example(dom(hostdev(GPU, "<driver name='kvm'/>")), dom(hostdev(GPU))),
    "VG213": Example(dom(hostdev(GPU, attr="")), dom(hostdev(GPU))),
    "VG214": Example(
        dom(hostdev(NIC).replace("hostdev mode='subsystem' type='pci'", "interface type='hostdev'")
            .replace("</hostdev>", "</interface>")
            .replace("<address domain", "<address type='pci' domain")),
        dom(hostdev(NIC_VF).replace(
                "hostdev mode='subsystem' type='pci'", "interface type='hostdev'")
            .replace("</hostdev>", "</interface>")
            .replace("<address domain", "<address type='pci' domain")),
        HOST,
    ),
    "VG215": Example(
        dom(hostdev(GPU, "<rom file='/gone'/>")), dom(hostdev(GPU, "<rom file='/there'/>")), HOST
    ),
    "VG216": Example(
        dom(hostdev(NIC_VF, "<rom bar='on'/>")), dom(hostdev(GPU, "<rom bar='on'/>")), HOST
    ),
    "VG217": Example(dom(mdev(inside="<boot order='1'/>")), dom(mdev())),
    "VG218": Example(dom(mdev(attr="")), dom(mdev())),
    "VG219": Example(
        dom(hostdev(GPU).replace("bus='0x17'", "bus='x'")), dom(hostdev(GPU))
    ),
    "VG220": Example(
        dom(hostdev(VF, attr="managed='no'")), dom(hostdev(VF, attr="managed='no'")),
        HOST._replace(target=Target(libvirt=9_000_000)),
        HOST._replace(target=Target(libvirt=11_003_000)),
    ),
    "VG301": Example(
        dom(mdev(attr="model='vfio-pci' display='on'")),
        dom(mdev(attr="model='vfio-pci' display='on'") + VNC),
    ),
    "VG302": Example(
        dom(mdev(attr="model='vfio-pci' ramfb='on'") + VNC),
        dom(mdev(attr="model='vfio-pci' display='on' ramfb='on'") + VNC),
    ),
    "VG303": Example(
        dom(mdev(attr="model='vfio-pci' display='on' ramfb='on'")
            + mdev(OTHER, attr="model='vfio-pci' display='on' ramfb='on'") + VNC),
        dom(mdev(attr="model='vfio-pci' display='on' ramfb='on'") + mdev(OTHER) + VNC),
    ),
    "VG304": Example(dom(NONE + VIDEO), dom(NONE)),
    "VG305": Example(
        dom("<video><model type='virtio' primary='yes'/></video>" * 2),
        dom("<video><model type='virtio' primary='yes'/></video>" + VIDEO),
    ),
    "VG306": Example(
        dom(mdev(attr="model='vfio-pci' display='on'") + VNC + VIDEO),
        dom(mdev(attr="model='vfio-pci' display='on'") + VNC + NONE),
    ),
    "VG307": Example(
        dom(mdev(attr="model='vfio-pci' display='on'") + VNC + NONE),
        dom(mdev(attr="model='vfio-pci' display='on' ramfb='on'") + VNC + NONE),
    ),
    "VG308": Example(dom(mdev(attr="model='vfio-ap' display='on'") + VNC), dom(mdev() + VNC)),
    "VG401": Example(
        dom(machine="pc", os="<loader secure='yes' type='pflash'>/x.secboot.fd</loader>",
            features="<acpi/><smm state='on'/>"),
        dom(os="<loader secure='yes' type='pflash'>/x.secboot.fd</loader>",
            features="<acpi/><smm state='on'/>"),
    ),
    "VG402": Example(
        dom(os="<loader secure='yes' type='pflash'>/x.secboot.fd</loader>"),
        dom(os="<loader secure='yes' type='pflash'>/x.secboot.fd</loader>",
            features="<acpi/><smm state='on'/>"),
    ),
    "VG403": Example(
        dom(os="<loader secure='yes' type='pflash'>/OVMF_CODE.fd</loader>",
            features="<acpi/><smm state='on'/>"),
        dom(os="<loader secure='yes'/>", os_attr=EFI),
    ),
    "VG404": Example(
        dom(os="<firmware><feature enabled='no' name='secure-boot'/>"
               "<feature enabled='yes' name='enrolled-keys'/></firmware>", os_attr=EFI),
        dom(os="<firmware><feature enabled='yes' name='secure-boot'/>"
               "<feature enabled='yes' name='enrolled-keys'/></firmware>", os_attr=EFI),
    ),
    "VG405": Example(
        dom(os="<loader readonly='yes' type='pflash'>/x.fd</loader>", os_attr=EFI),
        dom(os_attr=EFI), old(9_000_000),
    ),
    "VG406": Example(
        dom(os="<firmware><feature enabled='no' name='secure-boot'/></firmware>"),
        dom(os="<firmware><feature enabled='no' name='secure-boot'/></firmware>", os_attr=EFI),
    ),
    "VG407": Example(dom(os="<loader secure='no'/>"), dom(os="<loader secure='no'/>", os_attr=EFI)),
    "VG408": Example(
        dom(os="<loader type='pflash' stateless='yes'>/x.fd</loader><nvram>/v.fd</nvram>"),
        dom(os="<loader type='pflash' stateless='yes'>/x.fd</loader>"),
    ),
    "VG409": Example(dom(os_attr=EFI, features="<apic/>"), dom(os_attr=EFI)),
    "VG410": Example(
        dom("<tpm model='tpm-crb'><backend type='emulator' version='1.2'/></tpm>"),
        dom("<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"),
    ),
    "VG411": Example(
        dom("<tpm model='tpm-tis'><backend type='emulator' version='1.2'/></tpm>",
            metadata=osinfo("11"), os_attr=EFI),
        dom("<tpm model='tpm-tis'><backend type='emulator' version='2.0'/></tpm>",
            metadata=osinfo("11"), os_attr=EFI),
    ),
    "VG412": Example(dom(metadata=osinfo("11")), dom(metadata=osinfo("11"), os_attr=EFI)),
    "VG413": Example(
        dom("<tpm model='tpm-tis'><backend type='emulator'/></tpm>" * 2),
        dom("<tpm model='tpm-tis'><backend type='emulator'/></tpm>"),
    ),
    "VG414": Example(
        dom(hostdev(GPU, "<boot order='1'/>") + hostdev(VGA, "<boot order='1'/>")),
        dom(hostdev(GPU, "<boot order='1'/>") + hostdev(VGA, "<boot order='2'/>")),
    ),
    "VG415": Example(
        dom(hostdev(GPU, "<boot order='1'/>"), os="<boot dev='hd'/>"),
        dom(hostdev(GPU, "<boot order='1'/>")),
    ),
    "VG416": Example(
        dom(mdev(), metadata=osinfo("10")),
        dom(mdev(), metadata=osinfo("10"), features="<acpi/><hyperv mode='passthrough'/>"),
    ),
    "VG417": Example(
        dom(mdev(), metadata=osinfo("10")),
        dom(mdev(), "<clock offset='localtime'><timer name='hypervclock' present='yes'/></clock>",
            metadata=osinfo("10")),
    ),
    "VG418": Example(
        dom(os="<loader type='pflash'>/gone</loader>"),
        dom(os="<loader type='pflash'>/there</loader>"), HOST,
    ),
    "VG501": Example(
        dom(hostdev(GPU), "<memtune><hard_limit unit='GiB'>8</hard_limit></memtune>"),
        dom(hostdev(GPU), "<memtune><hard_limit unit='GiB'>9</hard_limit></memtune>"),
    ),
    "VG502": Example(
        dom(hostdev(GPU) + "<memballoon model='virtio'/>"), dom(hostdev(GPU) + NO_BALLOON)
    ),
    "VG503": Example(
        dom(hostdev(GPU) + NO_BALLOON, "<currentMemory unit='GiB'>4</currentMemory>"),
        dom(hostdev(GPU) + NO_BALLOON, "<currentMemory unit='MiB'>8192</currentMemory>"),
    ),
    "VG504": Example(
        dom(hostdev(GPU) + "<memballoon model='virtio' freePageReporting='on'/>"),
        dom(hostdev(GPU) + NO_BALLOON),
    ),
    "VG505": Example(
        dom(more=sized("", "<allocation mode='ondemand'/>")),
        dom(more=sized("", "<allocation mode='immediate'/>")),
    ),
    "VG506": Example(
        dom(more=sized("", "<source type='anonymous'/>")),
        dom(more=sized("", "<source type='file'/>")),
    ),
    "VG507": Example(
        dom(more=sized("<page size='1' unit='GiB'/>")),
        dom(more=sized("<page size='2' unit='MiB'/>")), HOST,
    ),
    "VG508": Example(
        dom(more=sized("<page size='2048'/><page size='1048576'/>")),
        dom(more=sized("<page size='2048'/><page size='1048576' nodeset='0'/>")),
    ),
    "VG509": Example(
        dom(more=sized("<page size='2048' nodeset='1'/>")),
        dom(more=sized("<page size='2048' nodeset='0'/>") + NUMA),
    ),
    "VG510": Example(
        dom(more="<numatune><memory mode='strict' nodeset='0,4'/></numatune>"),
        dom(more="<numatune><memory mode='strict' nodeset='0-1'/></numatune>"), HOST,
    ),
    "VG511": Example(
        dom(more="<numatune><memnode cellid='0' mode='strict' nodeset='0'/></numatune>"),
        dom(more="<numatune><memnode cellid='0' mode='strict' nodeset='0'/></numatune>" + NUMA),
    ),
    "VG512": Example(
        dom(more="<memoryBacking><locked/></memoryBacking>"),
        dom(more="<memoryBacking><locked/></memoryBacking>"
                 "<memtune><hard_limit unit='GiB'>12</hard_limit></memtune>"),
    ),
    "VG513": Example(
        dom("<filesystem type='mount'><driver type='virtiofs'/><source dir='/a'/>"
            "<target dir='t'/></filesystem>"),
        dom("<filesystem type='mount'><driver type='virtiofs'/><source dir='/a'/>"
            "<target dir='t'/></filesystem>",
            "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"),
    ),
    "VG514": Example(
        dom(more="<memtune><hard_limit unit='GiB'>8</hard_limit></memtune>"),
        dom(more="<memtune><hard_limit unit='GiB'>12</hard_limit></memtune>"),
    ),
    "VG601": Example(
        dom(hostdev(GPU), "<cputune><vcpupin vcpu='0' cpuset='4'/></cputune>"),
        dom(hostdev(GPU), "<cputune><vcpupin vcpu='0' cpuset='2'/></cputune>"), HOST,
    ),
    "VG602": Example(
        dom(hostdev(GPU), "<numatune><memory mode='strict' nodeset='1'/></numatune>"),
        dom(hostdev(GPU), "<numatune><memory mode='strict' nodeset='0'/></numatune>"), HOST,
    ),
    "VG603": Example(
        dom(more="<cputune><vcpupin vcpu='0' cpuset='64'/></cputune>"),
        dom(more="<cputune><vcpupin vcpu='0' cpuset='7'/></cputune>"), HOST,
    ),
    "VG604": Example(
        dom(more="<cpu mode='host-passthrough'><maxphysaddr mode='emulate' bits='52'/></cpu>"),
        dom(more="<cpu mode='host-passthrough'><maxphysaddr mode='emulate' bits='46'/></cpu>"),
        HOST,
    ),
    "VG605": Example(
        dom(more="<cpu><topology sockets='1' cores='3' threads='2'/></cpu>"),
        dom(more="<cpu><topology sockets='1' cores='2' threads='2'/></cpu>"),
    ),
    "VG606": Example(
        dom(more="<cpu mode='host-passthrough'><maxphysaddr mode='emulate'/></cpu>"),
        dom(more="<cpu mode='host-passthrough'><maxphysaddr mode='passthrough'/></cpu>"),
    ),
    "VG607": Example(
        dom(vcpu="288"),
        dom(INTEL.format("intremap='on' eim='on'"), vcpu="288",
            features="<acpi/><ioapic driver='qemu'/>"),
    ),
    "VG608": Example(
        dom(INTEL.format("intremap='on'")),
        dom(INTEL.format("intremap='on'"), features="<acpi/><ioapic driver='qemu'/>"),
    ),
    "VG609": Example(
        dom(INTEL.format("caching_mode='on'"), machine="pc"), dom(INTEL.format("caching_mode='on'"))
    ),
    "VG610": Example(
        dom(INTEL.format("iotlb='on'") + hostdev(GPU)),
        dom(INTEL.format("caching_mode='on'") + hostdev(GPU)),
    ),
    "VG611": Example(
        dom(control("pcie-expander-bus", 1, "<target><node>1</node></target>"), NUMA),
        dom(control("pcie-expander-bus", 1, "<target><node>0</node></target>"), NUMA),
    ),
    "VG612": Example(
        dom(more="<cpu mode='host-passthrough'/>", attr="type='qemu'"),
        dom(more="<cpu mode='host-passthrough'/>"),
    ),
    "VG613": Example(
        dom(INTEL.format("caching_mode='on'") + hostdev(GPU) + hostdev(VGA)),
        dom(INTEL.format("caching_mode='on'") + hostdev(GPU)),
    ),
    "VG701": Example(
        dom(hostdev(GPU, "<driver model='vfio-pci'/>")), dom(hostdev(GPU)), old(9_000_000)
    ),
    "VG702": Example(
        dom(more="<launchSecurity type='sev-snp'><policy>0x30000</policy></launchSecurity>"),
        dom(), Context(target=Target(libvirt=11_003_000, qemu=7_002_000)),
    ),
    "VG801": Example(dom(mdev().replace("managed='no'", "managed='yes'")), dom(mdev())),
    "VG802": Example(
        dom(more="<cputune><vcpupin vcpu='4' cpuset='0'/></cputune>"),
        dom(more="<cputune><vcpupin vcpu='3' cpuset='0'/></cputune>"),
    ),
    "VG803": Example(dom(hostdev(GPU, "<driver name='vfio'/>")), dom(hostdev(GPU))),
    "VG804": Example(
        dom("<x:y xmlns:x='urn:x'/>"), dom(metadata="<metadata><x:y xmlns:x='urn:x'/></metadata>")
    ),
    "VG805": Example(
        dom(metadata="<metadata><y/></metadata>"),
        dom(metadata="<metadata><x:y xmlns:x='urn:x'/></metadata>"),
    ),
    "VG806": Example(dom(attr="type='kvm' id='3'"), dom()),
    "VG807": Example(
        dom(hostdev(GPU, "<alias name='gpu'/>")), dom(hostdev(GPU, "<alias name='ua-gpu'/>"))
    ),
    "VG808": Example(
        dom(hostdev(GPU, "<alias name='ua-a'/>") + hostdev(VGA, "<alias name='ua-a'/>")),
        dom(hostdev(GPU, "<alias name='ua-a'/>") + hostdev(VGA, "<alias name='ua-b'/>")),
    ),
    "VG809": Example(
        dom(metadata="<metadata><v:guest xmlns:v='urn:virtgpu:guest:1' version='1'>"
                     "<v:slice id='a b'/></v:guest></metadata>"),
        dom(),
    ),
    "VG810": Example(
        dom(more="<currentMemory unit='GiB'>9</currentMemory>"),
        dom(more="<currentMemory unit='GiB'>8</currentMemory>"),
    ),
    "VG811": Example(
        dom(hostdev(GPU, at("0x00", bus="0x17"))), dom(hostdev(GPU, at("0x00", bus="0x05")))
    ),
    "VG901": Example(dom(hostdev(GPU)), dom()),
    "VG902": Example(dom(mdev()), dom()),
    "VG903": Example(
        dom(more="<cpu mode='host-passthrough'/>"), dom(more="<cpu mode='host-model'/>")
    ),
    "VG904": Example(
        dom(more="<cpu mode='host-model'><feature policy='require' name='invtsc'/></cpu>"),
        dom(more="<cpu mode='host-model'><feature policy='disable' name='invtsc'/></cpu>"),
    ),
    "VG905": Example(
        dom(more="<launchSecurity type='sev'><cbitpos>47</cbitpos>"
                 "<reducedPhysBits>1</reducedPhysBits><policy>0x3</policy></launchSecurity>"),
        dom(),
    ),
    "VG906": Example(
        dom("<filesystem type='mount'><source dir='/a'/><target dir='t'/></filesystem>"), dom()
    ),
}  # fmt: skip
