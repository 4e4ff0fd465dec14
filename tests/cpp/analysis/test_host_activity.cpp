#include "catch.hpp"
#include "traceap/analysis/idle/host_activity.hpp"

using namespace traceap;

namespace {
HostActivity api(std::string_view name) {
  return classify_host_activity(EventKind::kRuntime, name);
}
HostActivity frame(std::string_view name) {
  return classify_host_activity(EventKind::kPythonFunction, name);
}
HostActivity range(std::string_view name) {
  return classify_host_activity(EventKind::kUserAnnotation, name);
}
HostActivity op(std::string_view name) { return classify_host_activity(EventKind::kCpuOp, name); }
}  // namespace

TEST_CASE("API calls are judged for CUDA, HIP and SYCL alike", "[analysis]") {
  for (const char* name : {"cudaStreamSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize",
                           "cudaEventSynchronize", "urEventWait", "zeCommandQueueSynchronize"}) {
    INFO(name);
    CHECK(api(name) == HostActivity::kSynchronize);
  }
  for (const char* name : {"cudaMalloc", "cudaFree", "hipMalloc", "hipFree", "cudaHostAlloc",
                           "hipHostMalloc", "cudaMallocAsync", "cuMemCreate", "cuMemMap",
                           "cudaHostRegister", "cuMemAlloc_v2", "urUSMDeviceAlloc"}) {
    INFO(name);
    CHECK(api(name) == HostActivity::kAllocator);
  }
  for (const char* name : {"cuModuleLoadData", "cuLibraryLoadData", "hipModuleLoad",
                           "cudaGraphInstantiate", "cuLinkComplete", "cudaStreamEndCapture"}) {
    INFO(name);
    CHECK(api(name) == HostActivity::kCompilation);
  }
  CHECK(api("cudaMemcpyAsync") == HostActivity::kAsyncCopy);
  CHECK(api("hipMemcpyWithStream") == HostActivity::kSyncCopy);
  CHECK(api("cudaMemcpy") == HostActivity::kSyncCopy);
}

TEST_CASE("API calls that only look alike are plain", "[analysis]") {
  for (const char* name :
       {"cudaLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch", "cudaStreamWaitEvent",
        "cudaEventQuery", "cudaMemsetAsync", "cudaGraphAddMemcpyNode", "cudaGraphAddMemAllocNode",
        "cudaStreamIsCapturing", "cudaFuncGetAttributes", ""}) {
    INFO(name);
    CHECK(api(name) == HostActivity::kApiCall);
  }
}

TEST_CASE("ranges and frames around the loader are data loading", "[analysis]") {
  CHECK(range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__") ==
        HostActivity::kDataLoading);
  CHECK(op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__") ==
        HostActivity::kDataLoading);  // legacy traces call it an operator
  CHECK(range("[pl][profile][_TrainingEpochLoop].train_dataloader_next") ==
        HostActivity::kDataLoading);
  CHECK(range("## load_batch ##") == HostActivity::kDataLoading);
  CHECK(frame("torch/utils/data/dataloader.py(633): __next__") == HostActivity::kDataLoading);
  CHECK(frame(R"(C:\env\torch\utils\data\_utils\fetch.py(49): fetch)") ==
        HostActivity::kDataLoading);
  CHECK(range("train_with_data_loader") == HostActivity::kPlain);
  CHECK(op("mylib::load_data") == HostActivity::kPlain);
}

TEST_CASE("compiling is told from calling what was compiled", "[analysis]") {
  CHECK(range("_compile.compile_inner (dynamo_timed)") == HostActivity::kCompilation);
  CHECK(frame("torch/_dynamo/convert_frame.py(500): _compile") == HostActivity::kCompilation);
  CHECK(frame("torch/_inductor/compile_fx.py(900): compile_fx_inner") ==
        HostActivity::kCompilation);
  CHECK(frame("triton/runtime/autotuner.py(100): _bench") == HostActivity::kCompilation);
  CHECK(op("TorchDynamo Cache Lookup") == HostActivity::kPlain);  // guards, in every call
  CHECK(frame("torch/_dynamo/eval_frame.py(745): compile_wrapper") == HostActivity::kPlain);
  CHECK(frame("torch/_inductor/output_code.py(584): __call__") == HostActivity::kPlain);
  CHECK(frame("triton/runtime/jit.py(330): run") == HostActivity::kPlain);
  CHECK(range("Torch-Compiled Region: 0/0") == HostActivity::kCompiledRegion);
  CHECK(range("## Call CompiledFxGraph fabc ##") == HostActivity::kCompiledRegion);
}

TEST_CASE("waits, operators and the profiler have classes of their own", "[analysis]") {
  CHECK(op("_c10d_functional::wait_tensor") == HostActivity::kCommunicationWait);
  CHECK(range("## KJTAllToAllTensorsAwaitable wait() ##") == HostActivity::kCommunicationWait);
  CHECK(range("gloo:all_reduce") == HostActivity::kHostCollective);
  CHECK(range("nccl:all_reduce") == HostActivity::kPlain);  // enqueues, does not wait
  CHECK(op("aten::item") == HostActivity::kScalarReadOp);
  CHECK(op("aten::nonzero") == HostActivity::kSyncingOp);
  CHECK(op("aten::_unique2") == HostActivity::kSyncingOp);
  CHECK(op("aten::copy_") == HostActivity::kCopyOp);
  CHECK(op("aten::cudnn_convolution") == HostActivity::kConvolutionOp);
  CHECK(op("ProfilerStep#3") == HostActivity::kMarker);
  CHECK(frame("torch/profiler/profiler.py(811): step") == HostActivity::kProfiler);
  CHECK(classify_host_activity(EventKind::kOverhead, "Lazy Function Loading") ==
        HostActivity::kCompilation);
  CHECK(classify_host_activity(EventKind::kOverhead, "Buffer Flush") == HostActivity::kProfiler);
  CHECK(frame("torch/cuda/__init__.py(975): synchronize") == HostActivity::kSynchronize);
}
