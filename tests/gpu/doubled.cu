// A plugin of TensorRT 8.6: y = 2 x, for FP32 in the linear layout. test_plugins.py builds and loads it.

#include <NvInfer.h>

#include <cstdint>

namespace {

__global__ void doubled(float const* x, float* y, int64_t count) {
    int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index < count) {
        y[index] = 2 * x[index];
    }
}

char const* const kName = "Doubled";
char const* const kVersion = "1";

class Doubled : public nvinfer1::IPluginV2DynamicExt {
public:
    char const* getPluginType() const noexcept override { return kName; }
    char const* getPluginVersion() const noexcept override { return kVersion; }
    char const* getPluginNamespace() const noexcept override { return ""; }
    void setPluginNamespace(char const*) noexcept override {}
    int32_t getNbOutputs() const noexcept override { return 1; }
    int32_t initialize() noexcept override { return 0; }
    void terminate() noexcept override {}
    void destroy() noexcept override { delete this; }
    Doubled* clone() const noexcept override { return new Doubled; }
    size_t getSerializationSize() const noexcept override { return 0; }
    void serialize(void*) const noexcept override {}

    nvinfer1::DataType getOutputDataType(int32_t, nvinfer1::DataType const* types, int32_t) const noexcept override {
        return types[0];
    }

    nvinfer1::DimsExprs getOutputDimensions(
        int32_t, nvinfer1::DimsExprs const* inputs, int32_t, nvinfer1::IExprBuilder&) noexcept override {
        return inputs[0];
    }

    bool supportsFormatCombination(
        int32_t index, nvinfer1::PluginTensorDesc const* tensors, int32_t, int32_t) noexcept override {
        return tensors[index].type == nvinfer1::DataType::kFLOAT
            && tensors[index].format == nvinfer1::TensorFormat::kLINEAR;
    }

    void configurePlugin(nvinfer1::DynamicPluginTensorDesc const*, int32_t,
        nvinfer1::DynamicPluginTensorDesc const*, int32_t) noexcept override {}

    size_t getWorkspaceSize(nvinfer1::PluginTensorDesc const*, int32_t, nvinfer1::PluginTensorDesc const*,
        int32_t) const noexcept override {
        return 0;
    }

    int32_t enqueue(nvinfer1::PluginTensorDesc const* described, nvinfer1::PluginTensorDesc const*,
        void const* const* inputs, void* const* outputs, void*, cudaStream_t stream) noexcept override {
        int64_t count = 1;
        for (int32_t axis = 0; axis < described[0].dims.nbDims; ++axis) {
            count *= described[0].dims.d[axis];
        }
        doubled<<<(count + 255) / 256, 256, 0, stream>>>(
            static_cast<float const*>(inputs[0]), static_cast<float*>(outputs[0]), count);
        return cudaGetLastError() == cudaSuccess ? 0 : 1;
    }
};

class DoubledCreator : public nvinfer1::IPluginCreator {
public:
    char const* getPluginName() const noexcept override { return kName; }
    char const* getPluginVersion() const noexcept override { return kVersion; }
    char const* getPluginNamespace() const noexcept override { return ""; }
    void setPluginNamespace(char const*) noexcept override {}
    nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override { return &fields_; }

    nvinfer1::IPluginV2* createPlugin(char const*, nvinfer1::PluginFieldCollection const*) noexcept override {
        return new Doubled;
    }

    nvinfer1::IPluginV2* deserializePlugin(char const*, void const*, size_t) noexcept override { return new Doubled; }

private:
    nvinfer1::PluginFieldCollection fields_{0, nullptr};
};

REGISTER_TENSORRT_PLUGIN(DoubledCreator);

} // namespace
