"""trtexec, the command line that comes with TensorRT: its options and its files."""
