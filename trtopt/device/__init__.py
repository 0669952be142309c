"""Everything that touches a device or an inference library. Other packages see only `device.api`."""
