"""ONNX file to engines: precision selection, engines, rebuild, timing-cache choice."""
