"""libvirt domain XML: built and edited with lxml."""
