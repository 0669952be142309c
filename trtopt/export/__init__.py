"""A trained PyTorch model becomes an ONNX file that every later stage takes. torch is imported late."""
