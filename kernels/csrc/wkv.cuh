// The arithmetic of the time mix that decoding and the run over many tokens share.
#pragma once

#include "common.cuh"

namespace albatross {

// exp(-0.5), the lowest logarithm of a decay, as RWKV-7 rounds it.
constexpr float kDecayScale = -0.606531f;
constexpr float kTiny = 1e-12f;
constexpr float kGroupNormEps = 64e-5f;

// Rows of more than one token, in wkv_sequence.cu: a block walks through a row's tokens. The place for a form that turns
// the recurrence of a chunk into products on the tensor cores.
cudaError_t wkv_sequence(const Wkv&, cudaStream_t);

// How a thread holds the state: `keys` neighbouring keys of a row are 16 bytes, and four of them at a time are used as float.
template <class State>
struct Packed;

template <>
struct Packed<half> {
  static constexpr int keys = 8;
  __device__ static float4 get(const uint4& bits, int four) {
    const float2 low = __half22float2(reinterpret_cast<const half2*>(&bits)[2 * four]);
    const float2 high = __half22float2(reinterpret_cast<const half2*>(&bits)[2 * four + 1]);
    return make_float4(low.x, low.y, high.x, high.y);
  }
  __device__ static void set(uint4& bits, int four, float4 value) {
    reinterpret_cast<half2*>(&bits)[2 * four] = __floats2half2_rn(value.x, value.y);
    reinterpret_cast<half2*>(&bits)[2 * four + 1] = __floats2half2_rn(value.z, value.w);
  }
};

template <>
struct Packed<float> {
  static constexpr int keys = 4;
  __device__ static float4 get(const uint4& bits, int) { return *reinterpret_cast<const float4*>(&bits); }
  __device__ static void set(uint4& bits, int, float4 value) { *reinterpret_cast<float4*>(&bits) = value; }
};

// a . b added to `sum`.
__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__device__ __forceinline__ float lerp(float from, float to, float share) { return fmaf(to - from, share, from); }

// The key after the in-context rate: k * (1 + (a - 1) * k_a).
__device__ __forceinline__ float rated_key(float k, float a, float k_a) { return k * fmaf(a - 1.0f, k_a, 1.0f); }

// 1 / max(norm, 1e-12), what kk is multiplied by; a norm that is NaN has made kk NaN already.
__device__ __forceinline__ float inverse_norm(float squares) { return rsqrtf(fmaxf(squares, kTiny * kTiny)); }

}  // namespace albatross
