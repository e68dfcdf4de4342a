// torch.ops.albatross_rwkv7.*: checks of what the kernels take for granted, then the launch functions of launch.h on the
// tensors' device and the current stream. No kernel is reached with a tensor that it could not read.
#include "launch.h"

// Neither ATen/cuda nor Python: those need headers of cuBLAS and of the interpreter, which a build need not have.
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>
#include <torch/version.h>

#include <limits>
#include <optional>
#include <string>

namespace albatross {
namespace {

using at::IntArrayRef;
using at::Tensor;
using at::TensorList;
using Maybe = std::optional<Tensor>;

constexpr uintptr_t kAlignment = 16;

template <typename T>
constexpr at::ScalarType kTypeOf = at::ScalarType::Undefined;
template <>
constexpr at::ScalarType kTypeOf<half> = at::ScalarType::Half;
template <>
constexpr at::ScalarType kTypeOf<float> = at::ScalarType::Float;
template <>
constexpr at::ScalarType kTypeOf<int> = at::ScalarType::Int;
// torch has few operations on unsigned words, so they travel as int32.
template <>
constexpr at::ScalarType kTypeOf<uint32_t> = at::ScalarType::Int;

c10::Device cuda_device(const char* op, const Tensor& first) {
  TORCH_CHECK(first.is_cuda(), op, ": needs CUDA tensors, got one on ", first.device());
  return first.device();
}

// One call of an operator: makes the device of its first tensor current, and checks every tensor on its way to a pointer.
class Call {
 public:
  Call(const char* op, const Tensor& first) : op_(op), device_(cuda_device(op, first)), guard_(device_) {}

  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream(device_.index()).stream(); }

  template <typename T>
  T* get(const Tensor& tensor, const char* name, IntArrayRef shape) const {
    TORCH_CHECK(tensor.scalar_type() == kTypeOf<T>, op_, ": ", name, " must be ", kTypeOf<T>, ", is ", tensor.scalar_type());
    TORCH_CHECK(tensor.sizes() == shape, op_, ": ", name, " must have the shape ", shape, ", has ", tensor.sizes());
    return static_cast<T*>(raw(tensor, name));
  }

  template <typename T>
  T* get(const Maybe& tensor, const char* name, IntArrayRef shape) const {
    return tensor.has_value() ? get<T>(*tensor, name, shape) : nullptr;
  }

  // Where shape and type were looked at already.
  void* raw(const Tensor& tensor, const char* name) const {
    TORCH_CHECK(tensor.device() == device_, op_, ": ", name, " is on ", tensor.device(), ", the first tensor on ", device_);
    TORCH_CHECK(tensor.is_contiguous(), op_, ": ", name, " must be contiguous, has strides ", tensor.strides());
    void* data = tensor.data_ptr();
    TORCH_CHECK(reinterpret_cast<uintptr_t>(data) % kAlignment == 0, op_, ": ", name, " must start at a multiple of 16 bytes");
    return data;
  }

  int size(const Tensor& tensor, int64_t dimension, const char* name) const {
    TORCH_CHECK(tensor.dim() > dimension, op_, ": ", name, " needs a dimension ", dimension, ", has the shape ", tensor.sizes());
    return fits(tensor.size(dimension), name);
  }

  int fits(int64_t value, const char* name) const {
    TORCH_CHECK(value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max(), op_, ": ", name, " = ",
                value, " does not fit 32 bits");
    return static_cast<int>(value);
  }

  void multiple(int64_t value, int64_t of, const char* name) const {
    TORCH_CHECK(value > 0 && value % of == 0, op_, ": ", name, " must be a positive multiple of ", of, ", is ", value);
  }

  void equal(int64_t value, int64_t expected, const char* name) const {
    TORCH_CHECK(value == expected, op_, ": ", name, " must be ", expected, ", is ", value);
  }

  void done(cudaError_t error) const {
    TORCH_CHECK(error == cudaSuccess, op_, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  }

  void done(const char* problem) const { TORCH_CHECK(problem == nullptr, op_, ": ", problem); }

 private:
  const char* op_;
  c10::Device device_;
  c10::cuda::CUDAGuard guard_;
};

void embed_op(const Tensor& table, const Tensor& ids, const Tensor& last, const Tensor& x) {
  const Call call("embed", table);
  Embed a{};
  a.vocab = call.size(table, 0, "table");
  a.width = call.size(table, 1, "table");
  a.tokens = call.size(ids, 0, "ids");
  call.multiple(a.width, kHeadSize, "the width");
  call.multiple(a.vocab, 1, "the vocabulary");
  a.table = call.get<half>(table, "table", {a.vocab, a.width});
  a.ids = call.get<int>(ids, "ids", {a.tokens});
  a.last = call.get<int>(last, "last", {call.size(last, 0, "last")});
  a.x = call.get<half>(x, "x", {a.tokens, a.width});
  if (a.tokens > 0) call.done(embed(a, call.stream()));
}

void mix_op(const Tensor& x, const Tensor& gamma, const Tensor& beta, const Tensor& mu, const Tensor& shift, const Tensor& slots,
            const Maybe& starts, const Maybe& token_row, const Maybe& tail, const Tensor& out, double eps) {
  const Call call("mix", x);
  Mix a{};
  a.tokens = call.size(x, 0, "x");
  a.width = call.size(x, 1, "x");
  a.mixes = call.size(mu, 0, "mu");
  a.rows = call.size(slots, 0, "slots");
  a.eps = static_cast<float>(eps);
  call.multiple(a.width, kHeadSize, "the width");
  TORCH_CHECK(a.mixes == 1 || a.mixes == 6, "mix: mu must have 1 or 6 rows, has ", a.mixes);
  TORCH_CHECK(starts.has_value() == token_row.has_value() && starts.has_value() == tail.has_value(),
              "mix: starts, token_row and tail come together or not at all");
  if (!starts.has_value()) call.equal(a.tokens, a.rows, "without starts, the number of tokens");
  a.x = call.get<half>(x, "x", {a.tokens, a.width});
  a.gamma = call.get<half>(gamma, "gamma", {a.width});
  a.beta = call.get<half>(beta, "beta", {a.width});
  a.mu = call.get<half>(mu, "mu", {a.mixes, a.width});
  a.shift = call.get<half>(shift, "shift", {call.size(shift, 0, "shift"), a.width});
  a.slots = call.get<int>(slots, "slots", {a.rows});
  a.starts = call.get<int>(starts, "starts", {a.rows + 1});
  a.token_row = call.get<int>(token_row, "token_row", {a.tokens});
  a.tail = call.get<half>(tail, "tail", {a.rows, a.width});
  a.out = call.get<half>(out, "out", {a.mixes, a.tokens, a.width});
  if (a.tokens > 0) call.done(mix(a, call.stream()));
}

void commit_op(const Tensor& tail, const Tensor& slots, const Tensor& shift) {
  const Call call("commit", tail);
  const int rows = call.size(tail, 0, "tail");
  const int width = call.size(tail, 1, "tail");
  call.multiple(width, kHeadSize, "the width");
  const half* from = call.get<half>(tail, "tail", {rows, width});
  const int* to = call.get<int>(slots, "slots", {rows});
  half* into = call.get<half>(shift, "shift", {call.size(shift, 0, "shift"), width});
  if (rows > 0) call.done(commit(from, to, into, rows, width, call.stream()));
}

void layer_norm_op(const Tensor& x, const Maybe& index, const Tensor& gamma, const Tensor& beta, const Tensor& out, double eps) {
  const Call call("layer_norm", x);
  const int width = call.size(x, 1, "x");
  const int rows = call.size(out, 0, "out");
  call.multiple(width, kHeadSize, "the width");
  if (!index.has_value()) call.equal(call.size(x, 0, "x"), rows, "without index, the rows of x");
  const half* from = call.get<half>(x, "x", {call.size(x, 0, "x"), width});
  const int* which = call.get<int>(index, "index", {rows});
  const half* scale = call.get<half>(gamma, "gamma", {width});
  const half* offset = call.get<half>(beta, "beta", {width});
  half* into = call.get<half>(out, "out", {rows, width});
  if (rows > 0) call.done(layer_norm(from, which, scale, offset, into, rows, width, static_cast<float>(eps), call.stream()));
}

void relu_square_op(const Tensor& h) {
  const Call call("relu_square", h);
  half* data = call.get<half>(h, "h", h.sizes());
  if (h.numel() == 0) return;
  call.multiple(h.numel(), 8, "the number of elements");
  call.done(relu_square(data, h.numel(), call.stream()));
}

void wkv_op(const Tensor& state, const Tensor& slots, const Maybe& starts, const Tensor& r, const Tensor& k, const Tensor& v,
            const Tensor& w_up, const Tensor& a_up, const Maybe& v_up, const Tensor& g, const Tensor& v_first, const Tensor& w0,
            const Tensor& a0, const Maybe& v0, const Tensor& k_k, const Tensor& k_a, const Tensor& r_k, const Tensor& ln_weight,
            const Tensor& ln_bias, const Tensor& out, int64_t scratch) {
  const Call call("wkv", state);
  Wkv a{};
  a.tokens = call.size(r, 0, "r");
  a.width = call.size(r, 1, "r");
  a.rows = call.size(slots, 0, "slots");
  a.scratch = call.fits(scratch, "scratch");
  call.multiple(a.width, kHeadSize, "the width");
  const int heads = a.width / kHeadSize;
  TORCH_CHECK(v_up.has_value() == v0.has_value(), "wkv: v_up and v0 come together or not at all");
  if (!starts.has_value()) call.equal(a.tokens, a.rows, "without starts, the number of tokens");

  const int64_t states[] = {call.size(state, 0, "state"), heads, kHeadSize, kHeadSize};
  a.state_is_float = state.scalar_type() == at::ScalarType::Float;
  a.state = a.state_is_float ? static_cast<void*>(call.get<float>(state, "state", states)) : call.get<half>(state, "state", states);
  a.slots = call.get<int>(slots, "slots", {a.rows});
  a.starts = call.get<int>(starts, "starts", {a.rows + 1});

  const int64_t sequence[] = {a.tokens, a.width};
  a.r = call.get<half>(r, "r", sequence);
  a.k = call.get<half>(k, "k", sequence);
  a.v = call.get<half>(v, "v", sequence);
  a.w_up = call.get<half>(w_up, "w_up", sequence);
  a.a_up = call.get<half>(a_up, "a_up", sequence);
  a.v_up = call.get<half>(v_up, "v_up", sequence);
  a.g = call.get<half>(g, "g", sequence);
  a.v_first = call.get<half>(v_first, "v_first", sequence);
  a.out = call.get<half>(out, "out", sequence);

  const int64_t channels[] = {a.width};
  a.w0 = call.get<half>(w0, "w0", channels);
  a.a0 = call.get<half>(a0, "a0", channels);
  a.v0 = call.get<half>(v0, "v0", channels);
  a.k_k = call.get<half>(k_k, "k_k", channels);
  a.k_a = call.get<half>(k_a, "k_a", channels);
  a.r_k = call.get<half>(r_k, "r_k", {heads, kHeadSize});
  a.ln_weight = call.get<half>(ln_weight, "ln_weight", channels);
  a.ln_bias = call.get<half>(ln_bias, "ln_bias", channels);
  if (a.tokens > 0 && a.rows > 0) call.done(wkv(a, call.stream()));
}

GroupedLinear grouped(const Call& call, const char* op, TensorList weights, TensorList inputs, TensorList outputs,
                      IntArrayRef activations, bool accumulate, int most_rows, int input_multiple, int output_multiple) {
  const size_t groups = weights.size();
  TORCH_CHECK(groups >= 1 && groups <= kMaxGroups, op, ": takes 1 to ", kMaxGroups, " products, got ", groups);
  TORCH_CHECK(inputs.size() == groups && outputs.size() == groups && activations.size() == groups, op, ": ", groups,
              " weights, but ", inputs.size(), " inputs, ", outputs.size(), " outputs and ", activations.size(), " activations");
  GroupedLinear a{};
  a.groups = static_cast<int>(groups);
  a.rows = call.size(inputs[0], 0, "inputs[0]");
  a.accumulate = accumulate;
  a.output_is_float = outputs[0].scalar_type() == at::ScalarType::Float;
  TORCH_CHECK(a.rows <= most_rows, op, ": takes at most ", most_rows, " rows, got ", a.rows);
  for (size_t i = 0; i < groups; ++i) {
    LinearGroup& group = a.group[i];
    group.outputs = call.size(weights[i], 0, "weights");
    group.inputs = call.size(weights[i], 1, "weights");
    group.activation = call.fits(activations[i], "activation");
    call.multiple(group.inputs, input_multiple, "the inputs of a product");
    call.multiple(group.outputs, output_multiple, "the outputs of a product");
    TORCH_CHECK(group.activation >= kNone && group.activation <= kReluSquare, op, ": no activation has the number ",
                group.activation);
    TORCH_CHECK(!accumulate || group.activation == kNone, op, ": a product that is added can have no activation");
    group.weight = call.get<half>(weights[i], "weights", {group.outputs, group.inputs});
    group.input = call.get<half>(inputs[i], "inputs", {a.rows, group.inputs});
    const int64_t shape[] = {a.rows, group.outputs};
    group.output = a.output_is_float ? static_cast<void*>(call.get<float>(outputs[i], "outputs", shape))
                                     : call.get<half>(outputs[i], "outputs", shape);
  }
  return a;
}

const Tensor& first_of(const char* op, TensorList tensors) {
  TORCH_CHECK(!tensors.empty(), op, ": got no weights");
  return tensors[0];
}

void gemv_op(TensorList weights, TensorList inputs, TensorList outputs, IntArrayRef activations, bool accumulate) {
  const Call call("gemv", first_of("gemv", weights));
  const GroupedLinear a = grouped(call, "gemv", weights, inputs, outputs, activations, accumulate, 8, 8, 1);
  if (a.rows > 0) call.done(gemv(a, call.stream()));
}

void grouped_gemm_op(TensorList weights, TensorList inputs, TensorList outputs, IntArrayRef activations, bool accumulate) {
  const Call call("grouped_gemm", first_of("grouped_gemm", weights));
  const GroupedLinear a = grouped(call, "grouped_gemm", weights, inputs, outputs, activations, accumulate,
                                  std::numeric_limits<int>::max(), 32, 8);
  if (a.rows > 0) call.done(grouped_gemm(a, call.stream()));
}

void sparse_linear_op(const Tensor& h, const Tensor& weight, const Tensor& x, const Tensor& partial, const Tensor& counters) {
  const Call call("sparse_linear", h);
  SparseLinear a{};
  a.rows = call.size(h, 0, "h");
  a.inputs = call.size(weight, 0, "weight");
  a.outputs = call.size(weight, 1, "weight");
  TORCH_CHECK(a.rows >= 1 && a.rows <= 4, "sparse_linear: takes 1 to 4 rows, got ", a.rows);
  call.multiple(a.inputs, 8, "the inputs");
  call.multiple(a.outputs, kHeadSize, "the outputs");
  a.h = call.get<half>(h, "h", {a.rows, a.inputs});
  a.weight = call.get<half>(weight, "weight", {a.inputs, a.outputs});
  a.x = call.get<half>(x, "x", {a.rows, a.outputs});
  a.partial = call.get<float>(partial, "partial", {partial.numel()});
  a.counters = call.get<int>(counters, "counters", {counters.numel()});
  const int64_t floats = sparse_partials(a.rows, a.inputs, a.outputs);
  TORCH_CHECK(partial.numel() >= floats, "sparse_linear: partial needs ", floats, " floats, has ", partial.numel());
  TORCH_CHECK(counters.numel() >= a.outputs / kHeadSize, "sparse_linear: counters needs ", a.outputs / kHeadSize, " ints, has ",
              counters.numel());
  call.done(sparse_linear(a, call.stream()));
}

int64_t sparse_partials_op(int64_t rows, int64_t inputs, int64_t outputs) {
  constexpr int64_t most = std::numeric_limits<int>::max();
  TORCH_CHECK(rows >= 1 && rows <= 4 && inputs >= 1 && inputs <= most && outputs >= 1 && outputs <= most,
              "sparse_partials: no such shape: ", rows, " rows, ", inputs, " inputs, ", outputs, " outputs");
  return sparse_partials(static_cast<int>(rows), static_cast<int>(inputs), static_cast<int>(outputs));
}

void sample_op(const Tensor& logits, const Tensor& slots, const Tensor& numbers, const Tensor& settings, const Tensor& bias,
               const Tensor& counts, const Tensor& touched, const Tensor& seen, const Tensor& allowed, const Tensor& grammar,
               const Tensor& uncounted, const Tensor& last, const Tensor& results, const Tensor& tops, int64_t scratch) {
  const Call call("sample", logits);
  Sample a{};
  a.rows = call.size(logits, 0, "logits");
  a.vocab = call.size(logits, 1, "logits");
  a.scratch = call.fits(scratch, "scratch");
  // The kernels read four logits at a time.
  call.multiple(a.vocab, 4, "the vocabulary");
  a.words = (a.vocab + 31) / 32;
  const int64_t pool = call.size(numbers, 0, "numbers");
  const int64_t per_token[] = {pool, a.vocab};
  const int64_t masks[] = {pool, a.words};
  a.logits = call.get<float>(logits, "logits", {a.rows, a.vocab});
  a.slots = call.get<int>(slots, "slots", {a.rows});
  a.numbers = call.get<float>(numbers, "numbers", {pool, 8});
  a.settings = call.get<int>(settings, "settings", {pool, 8});
  a.bias = call.get<float>(bias, "bias", per_token);
  a.counts = call.get<float>(counts, "counts", per_token);
  a.touched = call.get<uint32_t>(touched, "touched", masks);
  a.seen = call.get<uint32_t>(seen, "seen", masks);
  a.allowed = call.get<uint32_t>(allowed, "allowed", masks);
  a.grammar = call.get<uint32_t>(grammar, "grammar", masks);
  a.uncounted = call.get<uint32_t>(uncounted, "uncounted", {a.words});
  a.last = call.get<int>(last, "last", {pool});
  a.results = call.get<int>(results, "results", {a.rows, 4});
  a.tops = call.get<int>(tops, "tops", {a.rows, 2, 20});
  if (a.rows > 0) call.done(sample(a, call.stream()));
}

Matmul product(const Call& call, const Tensor& input, const Tensor& weight, bool weight_is_transposed, const Tensor& output,
               double beta, const Tensor& workspace) {
  const int64_t dims = input.dim();
  TORCH_CHECK((dims == 2 || dims == 3) && weight.dim() == dims && output.dim() == dims,
              "matmul: input, weight and output must all have 2 or all 3 dimensions, have ", dims, ", ", weight.dim(), " and ",
              output.dim());
  Matmul a{};
  a.batch = dims == 3 ? call.size(input, 0, "input") : 1;
  a.rows = call.size(input, dims - 2, "input");
  a.inputs = call.size(input, dims - 1, "input");
  a.outputs = call.size(weight, weight_is_transposed ? dims - 1 : dims - 2, "weight");
  a.weight_is_transposed = weight_is_transposed;
  a.output_is_float = output.scalar_type() == at::ScalarType::Float;
  a.beta = static_cast<float>(beta);
  // Rows of 16 bytes: what the tensor cores' loads need.
  call.multiple(a.inputs, 8, "the inputs");
  call.multiple(a.outputs, 8, "the outputs");
  const auto shape = [&](int64_t rows, int64_t columns) {
    c10::SmallVector<int64_t, 3> sizes;
    if (dims == 3) sizes.push_back(a.batch);
    sizes.push_back(rows);
    sizes.push_back(columns);
    return sizes;
  };
  const auto weights = weight_is_transposed ? shape(a.inputs, a.outputs) : shape(a.outputs, a.inputs);
  const auto outputs = shape(a.rows, a.outputs);
  a.input = call.get<half>(input, "input", shape(a.rows, a.inputs));
  a.weight = call.get<half>(weight, "weight", weights);
  a.output = a.output_is_float ? static_cast<void*>(call.get<float>(output, "output", outputs))
                               : call.get<half>(output, "output", outputs);
  a.workspace = call.raw(workspace, "workspace");
  a.workspace_bytes = static_cast<int64_t>(workspace.nbytes());
  return a;
}

void matmul_op(const Tensor& input, const Tensor& weight, bool weight_is_transposed, const Tensor& output, double beta,
               const Tensor& workspace, int64_t choice) {
  const Call call("matmul", input);
  const Matmul a = product(call, input, weight, weight_is_transposed, output, beta, workspace);
  if (a.batch > 0 && a.rows > 0) call.done(matmul(a, call.fits(choice, "choice"), call.stream()));
}

int64_t matmul_candidates_op(const Tensor& input, const Tensor& weight, bool weight_is_transposed, const Tensor& output,
                             double beta, const Tensor& workspace, int64_t most) {
  const Call call("matmul_candidates", input);
  const Matmul a = product(call, input, weight, weight_is_transposed, output, beta, workspace);
  call.multiple(a.batch, 1, "the batch");
  call.multiple(a.rows, 1, "the number of rows");
  call.multiple(most, 1, "most");
  const char* problem = nullptr;
  const int found = matmul_candidates(a, call.fits(most, "most"), &problem);
  call.done(problem);
  return found;
}

std::string build_info_op() {
  return "torch " TORCH_VERSION ", CUDA " + std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

}  // namespace
}  // namespace albatross

TORCH_LIBRARY(albatross_rwkv7, m) {
  m.def("embed(Tensor table, Tensor ids, Tensor last, Tensor(a!) x) -> ()");
  m.def(
      "mix(Tensor x, Tensor gamma, Tensor beta, Tensor mu, Tensor(a!) shift, Tensor slots, Tensor? starts, Tensor? token_row, "
      "Tensor(b!)? tail, Tensor(c!) out, float eps) -> ()");
  m.def("commit(Tensor tail, Tensor slots, Tensor(a!) shift) -> ()");
  m.def("layer_norm(Tensor x, Tensor? index, Tensor gamma, Tensor beta, Tensor(a!) out, float eps) -> ()");
  m.def("relu_square(Tensor(a!) h) -> ()");
  m.def(
      "wkv(Tensor(a!) state, Tensor slots, Tensor? starts, Tensor r, Tensor k, Tensor v, Tensor w_up, Tensor a_up, Tensor? v_up, "
      "Tensor g, Tensor(b!) v_first, Tensor w0, Tensor a0, Tensor? v0, Tensor k_k, Tensor k_a, Tensor r_k, Tensor ln_weight, "
      "Tensor ln_bias, Tensor(c!) out, int scratch) -> ()");
  m.def("gemv(Tensor[] weights, Tensor[] inputs, Tensor(a!)[] outputs, int[] activations, bool accumulate) -> ()");
  m.def("grouped_gemm(Tensor[] weights, Tensor[] inputs, Tensor(a!)[] outputs, int[] activations, bool accumulate) -> ()");
  m.def("sparse_linear(Tensor h, Tensor weight, Tensor(a!) x, Tensor(b!) partial, Tensor(c!) counters) -> ()");
  m.def("sparse_partials(int rows, int inputs, int outputs) -> int", albatross::sparse_partials_op);
  m.def(
      "sample(Tensor logits, Tensor slots, Tensor(a!) numbers, Tensor(b!) settings, Tensor(c!) bias, Tensor(d!) counts, "
      "Tensor(e!) touched, Tensor(f!) seen, Tensor allowed, Tensor grammar, Tensor uncounted, Tensor(g!) last, "
      "Tensor(h!) results, Tensor(i!) tops, int scratch) -> ()");
  m.def(
      "matmul(Tensor input, Tensor weight, bool weight_is_transposed, Tensor(a!) output, float beta, Tensor(b!) workspace, "
      "int choice) -> ()");
  m.def(
      "matmul_candidates(Tensor input, Tensor weight, bool weight_is_transposed, Tensor output, float beta, Tensor workspace, "
      "int most) -> int");
  m.def("build_info() -> str", albatross::build_info_op);
}

TORCH_LIBRARY_IMPL(albatross_rwkv7, CUDA, m) {
  m.impl("embed", albatross::embed_op);
  m.impl("mix", albatross::mix_op);
  m.impl("commit", albatross::commit_op);
  m.impl("layer_norm", albatross::layer_norm_op);
  m.impl("relu_square", albatross::relu_square_op);
  m.impl("wkv", albatross::wkv_op);
  m.impl("gemv", albatross::gemv_op);
  m.impl("grouped_gemm", albatross::grouped_gemm_op);
  m.impl("sparse_linear", albatross::sparse_linear_op);
  m.impl("sample", albatross::sample_op);
  m.impl("matmul", albatross::matmul_op);
  m.impl("matmul_candidates", albatross::matmul_candidates_op);
}
