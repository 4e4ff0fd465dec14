// Events of accelerators other than CUDA's and HIP's: Ascend, MTIA, Intel, Gaudi, Cambricon.
#include "catch.hpp"
#include "trace_text.hpp"
#include "traceap/tree/event_tree.hpp"

using namespace traceap;

namespace {

std::string meta(const std::string& kind, int pid, int tid, const std::string& key,
                 const std::string& value) {
  return R"({"ph":"M","pid":)" + std::to_string(pid) + R"(,"tid":)" + std::to_string(tid) +
         R"(,"name":")" + kind + R"(","args":{")" + key + R"(":")" + value + R"("}})";
}

/// msprof writes times as texts and no category.
std::string task(int pid, int tid, const std::string& name, const std::string& ts, double dur,
                 const std::string& args) {
  return R"({"ph":"X","pid":)" + std::to_string(pid) + R"(,"tid":)" + std::to_string(tid) +
         R"(,"name":")" + name + R"(","ts":")" + ts + R"(","dur":)" + std::to_string(dur) +
         R"(,"args":{)" + args + "}}";
}

std::string arrow(char phase, int pid, int tid, const std::string& ts, const std::string& id) {
  return std::string(R"({"ph":")") + phase +
         R"(","bp":"e","name":"torch_to_npu","cat":"async_npu",)" + R"("id":")" + id +
         R"(","pid":)" + std::to_string(pid) + R"(,"tid":)" + std::to_string(tid) + R"(,"ts":")" +
         ts + R"("})";
}

constexpr int kPython = 100, kCann = 200, kHardware = 300, kHccl = 400, kOverlap = 500;

TraceText ascend_text() {
  TraceText text;
  text.raw(meta("process_name", kPython, 0, "name", "Python"))
      .raw(meta("process_name", kCann, 0, "name", "CANN"))
      .raw(meta("process_name", kHardware, 0, "name", "Ascend Hardware"))
      .raw(meta("process_labels", kHardware, 0, "labels", "NPU 3"))
      .raw(meta("process_name", kHccl, 0, "name", "HCCL"))
      .raw(meta("thread_name", kHccl, 0, "name", "Group 0 Communication"))
      .raw(meta("thread_name", kHccl, 1, "name", "Plane 0"))
      .raw(meta("process_name", kOverlap, 0, "name", "Overlap Analysis"));
  text.raw(
          R"({"ph":"X","cat":"cpu_op","name":"aten::mm","pid":100,"tid":7,"ts":"1695115378713800.5",)"
          R"("dur":10,"args":{}})")
      .raw(arrow('s', kPython, 7, "1695115378713800.5", "1695115378713900.25"))
      .raw(task(kCann, 8, "Node@launch", "1695115378713820.0", 5, R"("connection_id":41)"))
      .raw(task(kHardware, 2, "MatMulV2", "1695115378713900.25", 50,
                R"("Task Type":"AI_CORE","Physic Stream Id":2,"connection_id":41)"))
      .raw(arrow('f', kHardware, 2, "1695115378713900.25", "1695115378713900.25"))
      .raw(task(kHardware, 2, "EVENT_WAIT", "1695115378713950.25", 30,
                R"("Task Type":"EVENT_WAIT","connection_id":99)"))
      .raw(task(kHardware, 2, "MEMCPY_ASYNC", "1695115378713990.0", 20,
                R"("Task Type":"SDMA_SQE","connection_id":42)"))
      .raw(task(kHccl, 0, "hcom_broadcast__503_0_1", "1695115378714010.0", 40,
                R"("connection_id":43)"))
      .raw(task(kHccl, 1, "Notify_Wait", "1695115378714010.0", 15, R"("task type":"Notify_Wait")"))
      .raw(task(kOverlap, 0, "Computing", "1695115378713900.25", 50, ""))
      .raw(task(kCann, 8, "AscendCL@aclrtSynchronizeStreamWithTimeout", "1695115378713830.0", 60,
                R"("connection_id":44)"));
  return text;
}

Row row_named(const EventTable& table, const std::string& name) {
  for (Row row = 0; row < table.size(); ++row) {
    if (table.name_of(row) == name && table.phase[row] == 'X') return row;
  }
  FAIL("no row " + name);
  return kNoRow;
}

}  // namespace

TEST_CASE("tasks of Ascend's streams are GPU events, waits and planes are not", "[trace]") {
  const EventTable table = ascend_text().table();
  const auto kind = [&](const std::string& name) { return table.kind[row_named(table, name)]; };
  CHECK(kind("MatMulV2") == EventKind::kKernel);
  CHECK(kind("MEMCPY_ASYNC") == EventKind::kGpuMemcpy);
  CHECK(kind("EVENT_WAIT") == EventKind::kCudaSync);
  CHECK(kind("hcom_broadcast__503_0_1") == EventKind::kKernel);
  CHECK(kind("Notify_Wait") == EventKind::kGpuUserAnnotation);
  CHECK(kind("Computing") == EventKind::kOther);
  CHECK(kind("Node@launch") == EventKind::kRuntime);
  const Row kernel = row_named(table, "MatMulV2");
  CHECK(table.device[kernel] == 3);
  CHECK(table.stream[kernel] == 2);
  CHECK(table.ts_ns[kernel] == 1'695'115'378'713'900'250);
  CHECK(table.device[row_named(table, "hcom_broadcast__503_0_1")] == 3);
}

TEST_CASE("Ascend's tasks have a launch by connection and an operator by arrow", "[trace]") {
  const EventTable table = ascend_text().table();
  const EventTree tree = build_tree(table);
  const Row kernel = row_named(table, "MatMulV2");
  CHECK(tree.launch[kernel] == row_named(table, "Node@launch"));
  CHECK(tree.op[kernel] == row_named(table, "aten::mm"));
  CHECK(tree.gpu_class[row_named(table, "hcom_broadcast__503_0_1")] == GpuClass::kCommunication);
  CHECK(tree.gpu_rows.size() == 3);
  CHECK(tree.api[row_named(table, "AscendCL@aclrtSynchronizeStreamWithTimeout")] ==
        ApiClass::kStreamSync);
  CHECK(tree.api[row_named(table, "Node@launch")] == ApiClass::kKernelLaunch);
}

TEST_CASE("processes of these names without Ascend's hardware stay foreign", "[trace]") {
  const EventTable table = TraceText()
                               .raw(meta("process_name", 200, 0, "name", "CANN"))
                               .raw(task(200, 8, "Node@launch", "10", 5, ""))
                               .table();
  CHECK(table.kind[row_named(table, "Node@launch")] == EventKind::kOther);
}

TEST_CASE("command processors' events are MTIA's work, beside kernels they are drawn", "[trace]") {
  TraceText text;
  text.host("mtia_runtime", "runtimeLaunch", 10, 5, R"("correlation":1)");
  text.gpu("mtia_ccp_events", "op", 20, 30, 7, 1);
  const EventTable alone = text.table();
  CHECK(alone.kind[row_named(alone, "op")] == EventKind::kKernel);
  const EventTree tree = build_tree(alone);
  CHECK(tree.launch[row_named(alone, "op")] == row_named(alone, "runtimeLaunch"));
  text.gpu("kernel", "gemm", 60, 30, 7, 2);
  const EventTable beside = text.table();
  CHECK(beside.kind[row_named(beside, "op")] == EventKind::kGpuUserAnnotation);
  CHECK(beside.kind[row_named(beside, "gemm")] == EventKind::kKernel);
}

TEST_CASE("copies of MTIA are requests to its DMA engines, on the line that they are drawn on",
          "[trace]") {
  for (const std::string category : {"mtia_ccp_events", "kernel"}) {
    TraceText text;
    text.host("mtia_runtime", "runFunction - job_prep_and_submit_for_execution", 10, 5,
              R"("correlation":1)");
    text.complete(category, "dma_request", 20, 30, 3, "12", R"("correlation":1)");
    text.complete(category, "dmatmul_fwd", 50, 10, 3, "5", R"("correlation":1)");
    text.gpu(category, "Memcpy HtoD", 70, 5, 9, 1);
    const EventTable table = text.table();
    const Row copy = row_named(table, "dma_request"), gemm = row_named(table, "dmatmul_fwd");
    CHECK(table.kind[copy] == EventKind::kGpuMemcpy);
    CHECK(table.device[copy] == 3);
    CHECK(table.stream[copy] == 12);
    CHECK(table.kind[gemm] == EventKind::kKernel);
    CHECK(table.stream[gemm] == 5);
    const Row upload = row_named(table, "Memcpy HtoD");
    CHECK(table.kind[upload] == EventKind::kGpuMemcpy);
    CHECK(table.device[upload] == 0);
    CHECK(table.stream[upload] == 9);
    const EventTree tree = build_tree(table);
    CHECK(tree.gpu_class[copy] == GpuClass::kMemcpy);
    CHECK(tree.gpu_class[gemm] == GpuClass::kCompute);
    CHECK(tree.streams.size() == 3);
    CHECK(tree.api[tree.launch[copy]] == ApiClass::kKernelLaunch);
  }
}

TEST_CASE("a kernel of such a name on another device stays a kernel, with no stream of its line",
          "[trace]") {
  TraceText text;
  text.host("cuda_runtime", "cudaLaunchKernel", 10, 5, R"("correlation":1)");
  text.complete("kernel", "dma_request", 20, 30, 3, "12", R"("correlation":1)");
  const EventTable table = text.table();
  const Row row = row_named(table, "dma_request");
  CHECK(table.kind[row] == EventKind::kKernel);
  CHECK(table.stream[row] == kNoId);
}

TEST_CASE("categories of Kineto's other devices", "[trace]") {
  CHECK(classify_event('X', "hpu_op") == EventKind::kRuntime);
  CHECK(classify_event('X', "xpu_sync") == EventKind::kRuntime);
  CHECK(classify_event('X', "xpu_driver") == EventKind::kDriver);
  CHECK(classify_event('X', "privateuse1_runtime") == EventKind::kRuntime);
  CHECK(classify_event('X', "mlu_memcpy") == EventKind::kGpuMemcpy);
  CHECK(classify_event('X', "GCU_MEMSET") == EventKind::kGpuMemset);
  CHECK(classify_event('X', "mtia_insight") == EventKind::kOther);
}

TEST_CASE("calls and copies of other vendors", "[table]") {
  CHECK(classify_api_call("AscendCL@aclrtMemcpyAsync") == ApiClass::kAsyncCopy);
  CHECK(classify_api_call("AscendCL@aclrtMemcpy") == ApiClass::kCopy);
  CHECK(classify_api_call("AscendCL@aclrtSynchronizeDevice") == ApiClass::kDeviceSync);
  CHECK(classify_api_call("AscendCL@aclrtRecordEvent") == ApiClass::kEventRecord);
  CHECK(classify_api_call("AscendCL@aclrtStreamWaitEvent") == ApiClass::kStreamWaitEvent);
  CHECK(classify_api_call("AscendCL@aclrtMalloc") == ApiClass::kDeviceAllocation);
  CHECK(classify_api_call("AscendCL@aclrtFree") == ApiClass::kDeviceFree);
  CHECK(classify_api_call("AscendCL@aclmdlRIExecuteAsync") == ApiClass::kGraphLaunch);
  CHECK(classify_api_call("urEnqueueKernelLaunch") == ApiClass::kKernelLaunch);
  CHECK(classify_api_call("zeCommandQueueSynchronize") == ApiClass::kStreamSync);
  CHECK(classify_api_call("synLaunch") == ApiClass::kKernelLaunch);
  CHECK(classify_api_call("synMemCopyAsync") == ApiClass::kAsyncCopy);
  CHECK(classify_api_call("synStreamSynchronize") == ApiClass::kStreamSync);
  const CopyKind up{CopyDirection::kHostToDevice, HostMemory::kPageable};
  CHECK(classify_copy("zeCommandListAppendMemoryCopy(M2D)") == up);
  const CopyKind down{CopyDirection::kDeviceToHost, HostMemory::kPageable};
  CHECK(classify_copy("Memcpy D2M (Device -> Memory)") == down);
  CHECK(classify_copy("Memcpy H2D (Host -> Device)").direction == CopyDirection::kHostToDevice);
}
