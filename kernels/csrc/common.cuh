// What several kernels need on the device: 16-byte accesses, conversions, reductions. Everything is explicit about
// rounding, so that it compiles with and without the implicit conversions of cuda_fp16.h.
#pragma once

#include "launch.h"

namespace albatross {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// The error of the launch just made; every launch function ends with it.
inline cudaError_t ok() { return cudaGetLastError(); }

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// --- Eight halfs, one 16-byte access -------------------------------------------------------------------------------

struct alignas(16) Half8 {
  half2 part[4];
};

__device__ __forceinline__ Half8 as_half8(uint4 bits) { return *reinterpret_cast<Half8*>(&bits); }
__device__ __forceinline__ uint4 as_bits(Half8 value) { return *reinterpret_cast<uint4*>(&value); }

// Plain; through the read-only path (only for memory that no block of this launch writes); touched once, evicted first.
__device__ __forceinline__ Half8 load8(const half* p) { return as_half8(*reinterpret_cast<const uint4*>(p)); }
__device__ __forceinline__ Half8 load8_const(const half* p) { return as_half8(__ldg(reinterpret_cast<const uint4*>(p))); }
__device__ __forceinline__ Half8 load8_once(const half* p) { return as_half8(__ldcs(reinterpret_cast<const uint4*>(p))); }
__device__ __forceinline__ void store8(half* p, Half8 value) { *reinterpret_cast<uint4*>(p) = as_bits(value); }
__device__ __forceinline__ void store8_once(half* p, Half8 value) { __stcs(reinterpret_cast<uint4*>(p), as_bits(value)); }

__device__ __forceinline__ void to_float(Half8 value, float (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(value.part[i]);
    out[2 * i] = pair.x;
    out[2 * i + 1] = pair.y;
  }
}

// Rounds to nearest even.
__device__ __forceinline__ Half8 to_half8(const float (&value)[8]) {
  Half8 out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.part[i] = __floats2half2_rn(value[2 * i], value[2 * i + 1]);
  return out;
}

// --- Reductions: the same order of additions every time ------------------------------------------------------------

// Over aligned groups of `lanes` lanes (a power of two); every lane receives the result. The whole warp must take part.
template <int lanes = kWarp>
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

// NaN loses against a number (fmaxf): look for it separately where it counts.
template <int lanes = kWarp>
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

// Over a block of `threads`; every thread receives the result. `scratch` (shared) holds a float per warp and is used
// after the one barrier in here, so two calls without a barrier between them need a scratch each.
template <int threads>
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  constexpr int warps = threads / kWarp;
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = scratch[0];
#pragma unroll
  for (int i = 1; i < warps; ++i) total += scratch[i];
  return total;
}

template <int threads>
__device__ __forceinline__ float block_max(float value, float* scratch) {
  constexpr int warps = threads / kWarp;
  value = warp_max(value);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  float best = scratch[0];
#pragma unroll
  for (int i = 1; i < warps; ++i) best = fmaxf(best, scratch[i]);
  return best;
}

// --- Elementwise ---------------------------------------------------------------------------------------------------

// 0 and 1 at the ends, NaN for NaN; the fast exponential is within 2 ulp of float, far under half's step.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

}  // namespace albatross
