"""Looking inside: inspector JSON, layer times and the ONNX graph → records. No device, no files."""
