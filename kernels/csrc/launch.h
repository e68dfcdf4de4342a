// Launch functions of the kernels: plain CUDA, no torch. ops.cpp wraps them as torch.ops.albatross_rwkv7.*.
//
// Shapes: N tokens of R rows; row i is the sequence in state slot slots[i], and its tokens are neighbours: it owns tokens
// starts[i] to starts[i + 1] - 1. starts == nullptr: every row has one token (decoding), so N == R and token i is row i.
// C is the width, H = C / 64 heads. All tensors are contiguous, row-major, 16-byte aligned. Every function only queues
// work on `stream`, allocates nothing, and returns the launch's error.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace albatross {

constexpr int kHeadSize = 64;
constexpr int kMaxGroups = 8;

enum Activation : int { kNone = 0, kTanh = 1, kSigmoid = 2, kReluSquare = 3 };

// x[i] = table[id], with id = ids[i], or the last token of slot -1 - ids[i] when ids[i] < 0. An id outside 0..vocab-1 counts as 0.
struct Embed {
  const half* table;    // [vocab, C]
  const int* ids;       // [N]
  const int* last;      // [slots]
  half* x;              // [N, C]
  int tokens, width, vocab;
};
cudaError_t embed(const Embed&, cudaStream_t);

// xn = LayerNorm(x) * gamma + beta in float32, rounded to half; out[k] = xn + (previous - xn) * mu[k], where previous is the
// xn of the token before, or shift[slot] for a row's first token. The last xn of every row goes to shift[slot] when
// starts == nullptr, else to tail[row], because another block may still read shift: commit() copies it afterwards.
struct Mix {
  const half* x;          // [N, C]
  const half* gamma;      // [C]
  const half* beta;       // [C]
  const half* mu;         // [K, C]
  half* shift;            // [slots, C]
  half* tail;             // [R, C], or nullptr when starts is
  const int* slots;       // [R]
  const int* starts;      // [R + 1] or nullptr
  const int* token_row;   // [N]: the row of each token, or nullptr when starts is
  half* out;              // [K, N, C]
  int tokens, rows, width, mixes;   // mixes: 1 or 6
  float eps;
};
cudaError_t mix(const Mix&, cudaStream_t);
cudaError_t commit(const half* tail, const int* slots, half* shift, int rows, int width, cudaStream_t);

// out[i] = LayerNorm(x[index[i]]) * gamma + beta; index == nullptr: i itself.
cudaError_t layer_norm(const half* x, const int* index, const half* gamma, const half* beta, half* out, int rows, int width,
                       float eps, cudaStream_t);

// h = max(h, 0)^2 in place; count is a multiple of 8.
cudaError_t relu_square(half* h, int64_t count, cudaStream_t);

// Everything of the time mix between its products, see RWKV7._time_mix: decay, in-context rate, value residual, normalised
// kk, the recurrence over each row's tokens (state in float32 registers), GroupNorm, bonus, gate.
struct Wkv {
  void* state;            // [slots, H, 64, 64] value x key; half or float
  bool state_is_float;
  const int* slots;       // [R]
  const int* starts;      // [R + 1] or nullptr
  const half* r;          // [N, C] each; products without anything applied
  const half* k;
  const half* v;
  const half* w_up;       // [N, C] outputs of the LoRAs, biases not yet added
  const half* a_up;
  const half* v_up;       // nullptr in layer 0
  const half* g;          // [N, C] the gate, complete
  half* v_first;          // [N, C]; written in layer 0, read later
  const half* w0;         // [C] each
  const half* a0;
  const half* v0;         // nullptr in layer 0
  const half* k_k;
  const half* k_a;
  const half* r_k;        // [H, 64]
  const half* ln_weight;  // [C]
  const half* ln_bias;
  half* out;              // [N, C]
  int rows, tokens, width;
  int scratch;            // rows in this slot are padding: nothing is read or written for them (out stays as it is)
};
cudaError_t wkv(const Wkv&, cudaStream_t);

// output[i] = act(weight[i] . input[i]), or += when accumulate, for several independent products in one launch.
struct LinearGroup {
  const half* weight;     // [outputs, inputs]; inputs is a multiple of 8
  const half* input;      // [rows, inputs]
  void* output;           // [rows, outputs]
  int outputs, inputs, activation;
};
struct GroupedLinear {
  LinearGroup group[kMaxGroups];
  int groups, rows;
  bool accumulate;        // add to what output holds (activation must be kNone)
  bool output_is_float;   // else half
};
cudaError_t gemv(const GroupedLinear&, cudaStream_t);          // rows 1 to 8: reads each weight once, bound by bandwidth
cudaError_t grouped_gemm(const GroupedLinear&, cudaStream_t);  // any rows; tensor cores; inputs a multiple of 32, outputs of 8

// x += h . weight, skipping the columns in which all rows of h are zero: only the weight rows that count are read.
struct SparseLinear {
  const half* h;          // [rows, inputs], rows 1 to 4
  const half* weight;     // [inputs, outputs]
  half* x;                // [rows, outputs], outputs a multiple of 64
  float* partial;         // scratch, sparse_partials(...) floats
  int* counters;          // scratch, zero before and after, outputs / 64 ints
  int rows, inputs, outputs;
};
int64_t sparse_partials(int rows, int inputs, int outputs);
cudaError_t sparse_linear(const SparseLinear&, cudaStream_t);

// One token per row, see sample.cu.
struct Sample {
  const float* logits;    // [R, vocab]; not changed
  const int* slots;       // [R]
  int rows, vocab, scratch;
  // Per slot:
  float* numbers;         // [slots, 8]: temperature, top_p, presence, frequency, decay, scale (changed), 2 spare
  int* settings;          // [slots, 8]: top_k (0: off), flags (kGrammar is cleared), top logprobs wanted, step (changed),
                          //             seed low, seed high, first id that is no top logprob, spare
  float* bias;            // [slots, vocab]: logit bias, minus the presence penalty of tokens seen
  float* counts;          // [slots, vocab]: frequency counts over scale
  uint32_t* touched;      // [slots, words]: tokens whose bias or count may not be zero
  uint32_t* seen;         // [slots, words]: tokens that pay presence already
  const uint32_t* allowed;  // [slots, words]: what may be produced
  const uint32_t* grammar;  // [slots, words]: a second mask, used by rows with the flag for it
  const uint32_t* uncounted;  // [words]: tokens that add nothing to the frequency
  int words;              // (vocab + 31) / 32
  int* last;              // [slots]: receives the token
  int* results;           // [R, 4]: token, status (0 fine, 1 not finite, 2 nothing allowed), logprob's bits,
                          //         0 (no logprobs wanted) or 1 + number of top logprobs wanted
  int* tops;              // [R, 2, 20]: ids, logprobs' bits; written for rows that want them
};
enum SampleFlags : int { kGreedy = 1, kLogprobs = 2, kPenalised = 4, kTouched = 8, kGrammar = 16 };
cudaError_t sample(const Sample&, cudaStream_t);

// Dense products by cuBLASLt, loaded at run time. Row-major: out[g] = input[g] . op(weight[g]) + beta * out[g].
struct Matmul {
  const half* input;      // [batch, rows, inputs]
  const half* weight;     // [batch, outputs, inputs], or [batch, inputs, outputs] when weight_is_transposed
  void* output;           // [batch, rows, outputs], half or float
  int batch, rows, inputs, outputs;
  bool weight_is_transposed, output_is_float;
  float beta;
  void* workspace;
  int64_t workspace_bytes;
};
// How many ways to compute this shape there are on this device (at most `most`); they are numbered from 0, best guess first.
int matmul_candidates(const Matmul&, int most, const char** problem);
// Runs candidate `choice`. Returns nullptr, or what went wrong.
const char* matmul(const Matmul&, int choice, cudaStream_t);

}  // namespace albatross
