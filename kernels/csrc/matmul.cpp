// Dense products by the cuBLASLt that torch brought, found in the process at run time: neither its headers nor its import
// library need be on a machine that builds this, and there is never a second copy of it in memory.
#include "launch.h"

#include <library_types.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#ifdef _WIN32
#define NOMINMAX
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace albatross {
namespace {

// --- The part of cuBLASLt's interface that is used here; the same values in versions 11 to 13 -------------------------

using Status = int;
constexpr Status kSuccess = 0;
constexpr int kCompute32F = 68;
constexpr int kOperationNone = 0;
constexpr int kOperationTranspose = 1;
enum DescAttribute : int { kTransA = 3, kTransB = 4 };
enum LayoutAttribute : int { kBatchCount = 5, kBatchOffset = 6 };
enum PreferenceAttribute : int { kWorkspaceBytes = 1, kReductions = 3, kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8 };
constexpr uint32_t kReduceInComputeType = 2;

using Handle = struct HandleOpaque*;
using Desc = struct DescOpaque*;
using Layout = struct LayoutOpaque*;
using Preference = struct PreferenceOpaque*;

struct Algorithm {
  uint64_t data[8];
};

struct Candidate {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Candidate) == 96, "the library writes an array of these");

struct Library {
  Status (*create)(Handle*);
  Status (*desc_create)(Desc*, int compute, int scale);
  Status (*desc_set)(Desc, int, const void*, size_t);
  Status (*desc_destroy)(Desc);
  Status (*layout_create)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t leading);
  Status (*layout_set)(Layout, int, const void*, size_t);
  Status (*layout_destroy)(Layout);
  Status (*preference_create)(Preference*);
  Status (*preference_set)(Preference, int, const void*, size_t);
  Status (*preference_destroy)(Preference);
  Status (*heuristic)(Handle, Desc, Layout, Layout, Layout, Layout, Preference, int, Candidate*, int*);
  Status (*matmul)(Handle, Desc, const void*, const void*, Layout, const void*, Layout, const void*, const void*, Layout, void*,
                   Layout, const Algorithm*, void*, size_t, cudaStream_t);
  std::string problem;  // why it could not be loaded, or empty
};

const char* status_text(Status status) {
  switch (status) {
    case 1: return "not initialised";
    case 3: return "out of memory";
    case 7: return "invalid value";
    case 8: return "this card's architecture is not supported";
    case 11: return "memory mapping error";
    case 13: return "execution failed";
    case 14: return "internal error";
    case 15: return "not supported";
    case 16: return "licence error";
    default: return "unknown status";
  }
}

// The texts are handed out as const char*; each thread keeps its last one.
const char* keep(std::string text) {
  thread_local std::string last;
  last = std::move(text);
  return last.c_str();
}

const char* problem_of(const char* step, Status status) {
  return keep(std::string("cuBLASLt ") + step + ": " + status_text(status) + " (" + std::to_string(status) + ")");
}

// --- Finding the library ----------------------------------------------------------------------------------------------

// A copy that is in the process already goes first: it is torch's, wherever that lies on the disk.
void* open_library(int major, bool only_loaded) {
#ifdef _WIN32
  const std::string name = "cublasLt64_" + std::to_string(major) + ".dll";
  return only_loaded ? GetModuleHandleA(name.c_str()) : LoadLibraryA(name.c_str());
#else
  const std::string name = "libcublasLt.so." + std::to_string(major);
  return dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | (only_loaded ? RTLD_NOLOAD : 0));
#endif
}

template <typename Function>
void resolve(void* library, const char* name, Function& into, std::string& problem) {
#ifdef _WIN32
  void* found = reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
#else
  void* found = dlsym(library, name);
#endif
  into = reinterpret_cast<Function>(found);
  if (found == nullptr) problem = std::string("cuBLASLt has no function ") + name;
}

Library load_library() {
  // The major version that this was built for, then the others.
  constexpr std::array<int, 4> majors{CUDART_VERSION / 1000, 13, 12, 11};
  void* found = nullptr;
  for (const bool only_loaded : {true, false}) {
    for (const int major : majors) {
      if (found == nullptr) found = open_library(major, only_loaded);
    }
  }
  Library lib{};
  if (found == nullptr) {
    lib.problem = "cuBLASLt is not loaded and cannot be found; it comes with a CUDA build of torch";
    return lib;
  }
  resolve(found, "cublasLtCreate", lib.create, lib.problem);
  resolve(found, "cublasLtMatmulDescCreate", lib.desc_create, lib.problem);
  resolve(found, "cublasLtMatmulDescSetAttribute", lib.desc_set, lib.problem);
  resolve(found, "cublasLtMatmulDescDestroy", lib.desc_destroy, lib.problem);
  resolve(found, "cublasLtMatrixLayoutCreate", lib.layout_create, lib.problem);
  resolve(found, "cublasLtMatrixLayoutSetAttribute", lib.layout_set, lib.problem);
  resolve(found, "cublasLtMatrixLayoutDestroy", lib.layout_destroy, lib.problem);
  resolve(found, "cublasLtMatmulPreferenceCreate", lib.preference_create, lib.problem);
  resolve(found, "cublasLtMatmulPreferenceSetAttribute", lib.preference_set, lib.problem);
  resolve(found, "cublasLtMatmulPreferenceDestroy", lib.preference_destroy, lib.problem);
  resolve(found, "cublasLtMatmulAlgoGetHeuristic", lib.heuristic, lib.problem);
  resolve(found, "cublasLtMatmul", lib.matmul, lib.problem);
  return lib;
}

const Library& library() {
  static const Library loaded = load_library();
  return loaded;
}

// --- One shape on one device ------------------------------------------------------------------------------------------

// cuBLASLt counts columns first, so it sees every row-major matrix transposed. It is asked for
// out^T [outputs, rows] = W [outputs, inputs] . input^T [inputs, rows], which in memory is out [rows, outputs].
struct Plan {
  Handle handle = nullptr;
  Desc desc = nullptr;
  Layout weight = nullptr;
  Layout input = nullptr;
  Layout output = nullptr;
  int64_t workspace_limit = 0;
  int asked = 0;
  std::vector<Candidate> candidates;

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    const Library& lib = library();
    if (desc != nullptr) lib.desc_destroy(desc);
    for (Layout layout : {weight, input, output}) {
      if (layout != nullptr) lib.layout_destroy(layout);
    }
  }
};

Status make_layout(const Library& lib, Layout* layout, int type, int rows, int columns, int batch) {
  Status status = lib.layout_create(layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
  if (status != kSuccess || batch == 1) return status;
  const int32_t count = batch;
  const int64_t offset = static_cast<int64_t>(rows) * columns;
  status = lib.layout_set(*layout, kBatchCount, &count, sizeof count);
  return status != kSuccess ? status : lib.layout_set(*layout, kBatchOffset, &offset, sizeof offset);
}

Status describe(const Library& lib, const Matmul& a, Plan& plan) {
  const int32_t op_weight = a.weight_is_transposed ? kOperationNone : kOperationTranspose;
  const int32_t op_input = kOperationNone;
  const int weight_rows = a.weight_is_transposed ? a.outputs : a.inputs;
  const int weight_columns = a.weight_is_transposed ? a.inputs : a.outputs;
  const int output_type = a.output_is_float ? CUDA_R_32F : CUDA_R_16F;
  Status status = lib.desc_create(&plan.desc, kCompute32F, CUDA_R_32F);
  if (status == kSuccess) status = lib.desc_set(plan.desc, kTransA, &op_weight, sizeof op_weight);
  if (status == kSuccess) status = lib.desc_set(plan.desc, kTransB, &op_input, sizeof op_input);
  if (status == kSuccess) status = make_layout(lib, &plan.weight, CUDA_R_16F, weight_rows, weight_columns, a.batch);
  if (status == kSuccess) status = make_layout(lib, &plan.input, CUDA_R_16F, a.inputs, a.rows, a.batch);
  if (status == kSuccess) status = make_layout(lib, &plan.output, output_type, a.outputs, a.rows, a.batch);
  return status;
}

Status ask(const Library& lib, const Matmul& a, int most, Plan& plan) {
  Preference preference = nullptr;
  Status status = lib.preference_create(&preference);
  if (status != kSuccess) return status;
  const uint64_t bytes = static_cast<uint64_t>(a.workspace_bytes);
  status = lib.preference_set(preference, kWorkspaceBytes, &bytes, sizeof bytes);
  // A product that is cut into sums may add them as float only: half would round each of them.
  if (status == kSuccess) status = lib.preference_set(preference, kReductions, &kReduceInComputeType, sizeof kReduceInComputeType);
  // The default is 256, more than slices of a larger tensor have.
  const uint32_t alignment = 16;
  for (const PreferenceAttribute which : {kAlignmentA, kAlignmentB, kAlignmentC, kAlignmentD}) {
    if (status == kSuccess) status = lib.preference_set(preference, which, &alignment, sizeof alignment);
  }
  std::vector<Candidate> found(static_cast<size_t>(most));
  int count = 0;
  if (status == kSuccess) {
    status = lib.heuristic(plan.handle, plan.desc, plan.weight, plan.input, plan.output, plan.output, preference, most,
                           found.data(), &count);
  }
  lib.preference_destroy(preference);
  if (status != kSuccess) return status;
  found.resize(static_cast<size_t>(std::clamp(count, 0, most)));
  for (const Candidate& candidate : found) {
    if (candidate.state == kSuccess) plan.candidates.push_back(candidate);
  }
  plan.asked = most;
  plan.workspace_limit = a.workspace_bytes;
  return kSuccess;
}

// --- What was asked already -------------------------------------------------------------------------------------------

// device, batch, rows, inputs, outputs, transposed, float output. The added output (beta) does not change what is possible.
using Key = std::tuple<int, int, int, int, int, bool, bool>;

struct Cache {
  std::mutex mutex;
  std::map<int, Handle> handles;
  std::map<Key, std::shared_ptr<const Plan>> plans;
};

// Never destroyed: at the end of the process the library may be gone before.
Cache& cache() {
  static Cache* const instance = new Cache;
  return *instance;
}

// The plan for a shape, made at the first call. A call that allows more candidates or more workspace than the first asks
// again; whoever still runs the older plan keeps it alive.
std::shared_ptr<const Plan> find(const Matmul& a, int most, const char** problem) {
  const Library& lib = library();
  if (!lib.problem.empty()) {
    *problem = lib.problem.c_str();
    return nullptr;
  }
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) {
    *problem = cudaGetErrorString(error);
    return nullptr;
  }
  const Key key{device, a.batch, a.rows, a.inputs, a.outputs, a.weight_is_transposed, a.output_is_float};
  Cache& known = cache();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto old = known.plans.find(key);
  if (old != known.plans.end() && old->second->asked >= most && (most == 1 || old->second->workspace_limit >= a.workspace_bytes)) {
    return old->second;
  }
  Handle& handle = known.handles[device];
  Status status = handle != nullptr ? kSuccess : lib.create(&handle);
  if (status != kSuccess) {
    *problem = problem_of("could not start", status);
    return nullptr;
  }
  const auto plan = std::make_shared<Plan>();
  plan->handle = handle;
  status = describe(lib, a, *plan);
  if (status == kSuccess) status = ask(lib, a, most, *plan);
  if (status == kSuccess && plan->candidates.empty()) status = 15;
  if (status != kSuccess) {
    *problem = problem_of(("knows no way to multiply [" + std::to_string(a.rows) + ", " + std::to_string(a.inputs) + "] by [" +
                           std::to_string(a.inputs) + ", " + std::to_string(a.outputs) + "]").c_str(), status);
    return nullptr;
  }
  known.plans[key] = plan;
  return plan;
}

}  // namespace

int matmul_candidates(const Matmul& a, int most, const char** problem) {
  *problem = nullptr;
  const std::shared_ptr<const Plan> plan = find(a, most, problem);
  return plan == nullptr ? 0 : std::min(most, static_cast<int>(plan->candidates.size()));
}

const char* matmul(const Matmul& a, int choice, cudaStream_t stream) {
  const char* problem = nullptr;
  const std::shared_ptr<const Plan> plan = find(a, 1, &problem);
  if (plan == nullptr) return problem;
  const int count = static_cast<int>(plan->candidates.size());
  if (choice < 0 || choice >= count) {
    return keep("there is no candidate " + std::to_string(choice) + " for this shape, only " + std::to_string(count) +
                "; ask for the candidates first");
  }
  const Candidate& candidate = plan->candidates[static_cast<size_t>(choice)];
  if (candidate.workspace_bytes > static_cast<size_t>(a.workspace_bytes)) {
    return keep("candidate " + std::to_string(choice) + " needs a workspace of " + std::to_string(candidate.workspace_bytes) +
                " bytes, got " + std::to_string(a.workspace_bytes));
  }
  const float alpha = 1.0f;
  const Status status =
      library().matmul(plan->handle, plan->desc, &alpha, a.weight, plan->weight, a.input, plan->input, &a.beta, a.output,
                       plan->output, a.output, plan->output, &candidate.algorithm, a.workspace, candidate.workspace_bytes, stream);
  return status == kSuccess ? nullptr : problem_of("could not run the product", status);
}

}  // namespace albatross
