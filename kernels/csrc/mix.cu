// The elementwise stages between products: embedding, LayerNorm, token shift with its mixes, squared relu.
//
// Rows are handled by one block each and one 16-byte piece per thread, so a row stays in registers between its passes.
#include "common.cuh"

namespace albatross {
namespace {

constexpr int kPiece = 8;
constexpr int kMostThreads = 1024;
constexpr int kFlatThreads = 256;

// Threads for a row of `width`: whole warps, the last of which may have lanes without a piece.
int row_threads(int width) { return ceil_div(width / kPiece, kWarp) * kWarp; }

bool fits(int width) { return width > 0 && width % kPiece == 0 && row_threads(width) <= kMostThreads; }

// Adds each of `count` values over the block. One barrier; `scratch` is read after it.
template <int count>
__device__ __forceinline__ void row_sum(float (&value)[count], float (&scratch)[count][kWarp]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    value[i] = warp_sum(value[i]);
    if (lane == 0) scratch[i][warp] = value[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < count; ++i) value[i] = warp_sum(lane < warps ? scratch[i][lane] : 0.0f);
}

// LayerNorm of `count` rows side by side, in place: two passes over the registers, since the mean of squares minus the
// square of the mean cancels where a row's mean is large. Lanes without a piece pass active = false and any values.
template <int count>
__device__ __forceinline__ void normalise(float (&row)[count][kPiece], bool active, int width, float eps) {
  __shared__ float sums[2][count][kWarp];
  float total[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    total[i] = 0.0f;
#pragma unroll
    for (int e = 0; e < kPiece; ++e) total[i] += active ? row[i][e] : 0.0f;
  }
  row_sum(total, sums[0]);
  const float inverse = 1.0f / static_cast<float>(width);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const float mean = total[i] * inverse;
    total[i] = 0.0f;
#pragma unroll
    for (int e = 0; e < kPiece; ++e) {
      row[i][e] -= mean;
      total[i] += active ? row[i][e] * row[i][e] : 0.0f;
    }
  }
  row_sum(total, sums[1]);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const float scale = rsqrtf(total[i] * inverse + eps);
#pragma unroll
    for (int e = 0; e < kPiece; ++e) row[i][e] *= scale;
  }
}

// value * gamma + beta, as half.
__device__ __forceinline__ Half8 affine(const float (&value)[kPiece], Half8 gamma, Half8 beta) {
  float scale[kPiece], offset[kPiece], out[kPiece];
  to_float(gamma, scale);
  to_float(beta, offset);
#pragma unroll
  for (int e = 0; e < kPiece; ++e) out[e] = fmaf(value[e], scale[e], offset[e]);
  return to_half8(out);
}

// x + (previous - x) * mu.
__device__ __forceinline__ Half8 blend(const float (&x)[kPiece], const float (&difference)[kPiece], Half8 mu) {
  float share[kPiece], out[kPiece];
  to_float(mu, share);
#pragma unroll
  for (int e = 0; e < kPiece; ++e) out[e] = fmaf(difference[e], share[e], x[e]);
  return to_half8(out);
}

// One block per token. The token before is normalised here a second time, which costs a read that the cache serves and
// spares a pass over memory; the same code on the same numbers gives the same bits. Decoding asks for everything it reads
// before the first reduction, since a single row is all latency; with many tokens other blocks hide that.
template <bool decoding, int mixes>
__global__ void __launch_bounds__(kMostThreads) mix_kernel(Mix p) {
  constexpr int count = decoding ? 1 : 2;
  const int token = blockIdx.x;
  const int row = decoding ? token : p.token_row[token];
  const int column = threadIdx.x * kPiece;
  const bool active = column < p.width;
  const bool first = decoding || token == p.starts[row];
  half* carried = p.shift + static_cast<int64_t>(p.slots[row]) * p.width + column;

  Half8 x = {}, gamma = {}, beta = {}, before = {}, mu[mixes] = {};
  if (active) {
    const half* source = p.x + static_cast<int64_t>(token) * p.width + column;
    x = load8(source);
    gamma = load8_const(p.gamma + column);
    beta = load8_const(p.beta + column);
#pragma unroll
    for (int i = 0; decoding && i < mixes; ++i) mu[i] = load8_const(p.mu + i * p.width + column);
    before = first ? load8(carried) : load8(source - p.width);
  }

  float value[count][kPiece];
  to_float(x, value[0]);
  if constexpr (!decoding) to_float(before, value[1]);
  normalise(value, active, p.width, p.eps);
  if (!active) return;

  const Half8 normal = affine(value[0], gamma, beta);
  if constexpr (!decoding) {
    if (!first) before = affine(value[1], gamma, beta);
  }
  if constexpr (decoding) {
    store8(carried, normal);
  } else if (token == p.starts[row + 1] - 1) {
    store8(p.tail + static_cast<int64_t>(row) * p.width + column, normal);
  }
  float now[kPiece], difference[kPiece];
  to_float(normal, now);
  to_float(before, difference);
#pragma unroll
  for (int e = 0; e < kPiece; ++e) difference[e] -= now[e];
#pragma unroll
  for (int i = 0; i < mixes; ++i) {
    half* target = p.out + (static_cast<int64_t>(i) * p.tokens + token) * p.width + column;
    store8(target, blend(now, difference, decoding ? mu[i] : load8_const(p.mu + i * p.width + column)));
  }
}

__global__ void __launch_bounds__(kMostThreads) norm_kernel(const half* x, const int* index, const half* gamma, const half* beta,
                                                            half* out, int width, float eps) {
  const int row = blockIdx.x;
  const int column = threadIdx.x * kPiece;
  const bool active = column < width;
  const int source = index == nullptr ? row : index[row];
  Half8 piece = {}, scale = {}, offset = {};
  if (active) {
    scale = load8_const(gamma + column);
    offset = load8_const(beta + column);
    piece = load8(x + static_cast<int64_t>(source) * width + column);
  }
  float value[1][kPiece];
  to_float(piece, value[0]);
  normalise(value, active, width, eps);
  if (active) store8(out + static_cast<int64_t>(row) * width + column, affine(value[0], scale, offset));
}

__global__ void __launch_bounds__(kMostThreads) embed_kernel(Embed p) {
  const int column = threadIdx.x * kPiece;
  if (column >= p.width) return;
  int id = p.ids[blockIdx.x];
  if (id < 0) id = p.last[-1 - id];
  if (id < 0 || id >= p.vocab) id = 0;
  store8(p.x + static_cast<int64_t>(blockIdx.x) * p.width + column, load8_const(p.table + static_cast<int64_t>(id) * p.width + column));
}

__global__ void __launch_bounds__(kMostThreads) commit_kernel(const half* tail, const int* slots, half* shift, int width) {
  const int column = threadIdx.x * kPiece;
  if (column >= width) return;
  const Half8 piece = load8(tail + static_cast<int64_t>(blockIdx.x) * width + column);
  store8(shift + static_cast<int64_t>(slots[blockIdx.x]) * width + column, piece);
}

// A comparison instead of a maximum: the maximum of NaN and 0 is 0, and a row that went wrong has to stay recognisable.
__global__ void __launch_bounds__(kFlatThreads) relu_square_kernel(half* h, int64_t pieces) {
  const int64_t piece = static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x;
  if (piece >= pieces) return;
  float value[kPiece];
  to_float(load8(h + piece * kPiece), value);
#pragma unroll
  for (int e = 0; e < kPiece; ++e) value[e] = value[e] < 0.0f ? 0.0f : value[e] * value[e];
  store8(h + piece * kPiece, to_half8(value));
}

}  // namespace

cudaError_t embed(const Embed& p, cudaStream_t stream) {
  if (!fits(p.width)) return cudaErrorInvalidValue;
  if (p.tokens == 0) return cudaSuccess;
  embed_kernel<<<p.tokens, row_threads(p.width), 0, stream>>>(p);
  return ok();
}

cudaError_t mix(const Mix& p, cudaStream_t stream) {
  if (!fits(p.width) || (p.mixes != 1 && p.mixes != 6)) return cudaErrorInvalidValue;
  if (p.tokens == 0) return cudaSuccess;
  const int threads = row_threads(p.width);
  if (p.starts == nullptr) {
    if (p.mixes == 6) {
      mix_kernel<true, 6><<<p.tokens, threads, 0, stream>>>(p);
    } else {
      mix_kernel<true, 1><<<p.tokens, threads, 0, stream>>>(p);
    }
  } else {
    if (p.mixes == 6) {
      mix_kernel<false, 6><<<p.tokens, threads, 0, stream>>>(p);
    } else {
      mix_kernel<false, 1><<<p.tokens, threads, 0, stream>>>(p);
    }
  }
  return ok();
}

cudaError_t commit(const half* tail, const int* slots, half* shift, int rows, int width, cudaStream_t stream) {
  if (!fits(width)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  commit_kernel<<<rows, row_threads(width), 0, stream>>>(tail, slots, shift, width);
  return ok();
}

cudaError_t layer_norm(const half* x, const int* index, const half* gamma, const half* beta, half* out, int rows, int width,
                       float eps, cudaStream_t stream) {
  if (!fits(width)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  norm_kernel<<<rows, row_threads(width), 0, stream>>>(x, index, gamma, beta, out, width, eps);
  return ok();
}

cudaError_t relu_square(half* h, int64_t count, cudaStream_t stream) {
  if (count % kPiece != 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const int64_t pieces = count / kPiece;
  relu_square_kernel<<<static_cast<unsigned>((pieces + kFlatThreads - 1) / kFlatThreads), kFlatThreads, 0, stream>>>(h, pieces);
  return ok();
}

}  // namespace albatross
