// The sampler's view of one row of logits: what a block keeps in shared memory, how it walks over the row, and the random race
// that draws a token.
#pragma once

#include "common.cuh"

#include <cfloat>
#include <climits>
#include <cmath>

namespace albatross {
namespace {

using Wide = unsigned long long;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBins = 2 * kThreads;
constexpr int kListed = 2048;       // candidates that are kept in shared memory; with more, the row is read again
constexpr int kInside = kThreads;   // entries of the crossing bin that are compared pair by pair
constexpr int kDeltas = 3 * kBins;  // touched tokens whose adjustment is kept in shared memory
constexpr float kLog2e = 1.44269504f;
constexpr float kMassUnit = 0x1p40f;    // of the largest token's mass, 1
constexpr float kWidest = 64.0f;        // nats below the maximum that the histogram can tell apart
constexpr float kLeastTemperature = 1e-30f;

struct Histogram {
  uint32_t low[kBins];   // of the mass, 64 bits in two words: shared memory has no 64-bit addition of its own
  uint32_t high[kBins];
  uint32_t count[kBins];
};

struct Inside {
  Wide mass[kInside];
  uint32_t key[kInside];
};

struct Shared {
  union {
    Histogram histogram;
    Inside entries;
    int ids[kDeltas];
  };
  Wide warp_wide[kWarps];
  uint32_t warp_count[kWarps];
  float warp_float[2][kWarps];
  Wide crossing_mass;
  uint32_t crossing_count;
  int crossing_bin;
  int listed, inside;
  uint32_t key_low, key_high, cut;
  int last_id;
  float delta[kDeltas];
  int id[kListed];
  float value[kListed];
};

// Behind it, sized by the vocabulary: the masks, uint2 [words] (allowed, touched); uint16_t [words], the number of touched
// tokens before each word; and where they do not fit into the histogram, the marks of last_of_equals.
__device__ __forceinline__ unsigned char* memory() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return bytes;
}
__device__ __forceinline__ Shared& shared() { return *reinterpret_cast<Shared*>(memory()); }
__device__ __forceinline__ uint2* masks() { return reinterpret_cast<uint2*>(memory() + sizeof(Shared)); }
static_assert(sizeof(Shared) % sizeof(uint2) == 0, "alignment of the masks");

__host__ __device__ constexpr bool marks_fit(int words) { return words * sizeof(uint32_t) <= sizeof(Histogram); }
__host__ __device__ constexpr int even(int words) { return words + (words & 1); }
constexpr int shared_bytes(int words) {
  return static_cast<int>(sizeof(Shared)) + words * 8 + even(words) * 2 + (marks_fit(words) ? 0 : words * 4);
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// exp(x - top). Rounded explicitly, as everything whose value decides something: variants of the kernel must agree on it.
__device__ __forceinline__ float mass_of(float x, float top) { return exp2_fast(__fmul_rn(__fsub_rn(x, top), kLog2e)); }

// Unsigned integers in the order of the floats; both zeros are one. Finite numbers have keys above 0.
__device__ __forceinline__ uint32_t order_key(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// Larger: the larger value, and the lower id among equals.
__device__ __forceinline__ Wide ranked(float value, int id) {
  return static_cast<Wide>(order_key(value)) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ __forceinline__ int ranked_id(Wide rank) { return static_cast<int>(0xffffffffu - static_cast<uint32_t>(rank)); }

// --- Over the block ------------------------------------------------------------------------------------------------

__device__ __forceinline__ Wide block_most(Wide value) {
  Shared& s = shared();
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Wide other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) s.warp_wide[threadIdx.x / kWarp] = value;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) value = s.warp_wide[i] > value ? s.warp_wide[i] : value;
  return value;
}

// The sum over the threads before this one.
template <class T>
__device__ __forceinline__ T exclusive_sum(T value, T* scratch, T& total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  T running = value;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T other = __shfl_up_sync(kAllLanes, running, distance);
    if (lane >= distance) running += other;
  }
  __syncthreads();
  if (lane == kWarp - 1) scratch[warp] = running;
  __syncthreads();
  T before = 0;
  total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    before += i < warp ? scratch[i] : 0;
    total += scratch[i];
  }
  return before + running - value;
}

// --- The row -------------------------------------------------------------------------------------------------------

// What is added to the logit of a touched token. Not inlined: in the passes it is the exception, and would cost them registers.
__device__ __noinline__ float delta_of(const Sample& p, int slot, int token) {
  const int64_t at = static_cast<int64_t>(slot) * p.vocab + token;
  const float factor = __fmul_rn(p.numbers[8 * slot + 3], p.numbers[8 * slot + 5]);   // frequency * scale
  return __fsub_rn(p.bias[at], __fmul_rn(factor, p.counts[at]));
}

struct Row {
  const Sample& p;
  const float* logits;
  int slot, vocab;
  int adjusted = 0;         // number of touched tokens

  __device__ __forceinline__ float number(int column) const { return p.numbers[8 * slot + column]; }
  __device__ __forceinline__ int setting(int column) const { return p.settings[8 * slot + column]; }
  __device__ __forceinline__ uint16_t* rank() const { return reinterpret_cast<uint16_t*>(masks() + p.words); }
  __device__ __forceinline__ uint32_t* marks() const {
    return marks_fit(p.words) ? reinterpret_cast<uint32_t*>(&shared().histogram) : reinterpret_cast<uint32_t*>(rank() + even(p.words));
  }

  __device__ __forceinline__ void adjust(int quad, float (&x)[4]) const {
    const int word = quad >> 3, shift = (quad & 7) * 4;
    const uint2 bits = masks()[word];
    if (adjusted && (bits.y >> shift & 15u)) {
      int at = rank()[word] + __popc(bits.y & ((1u << shift) - 1));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (bits.y >> (shift + k) & 1u) {
          x[k] = __fadd_rn(x[k], adjusted <= kDeltas ? shared().delta[at++] : delta_of(p, slot, 4 * quad + k));
        }
      }
    }
    const uint32_t open = bits.x >> shift;
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = open >> k & 1u ? x[k] : -INFINITY;
  }
};

// f(quad, x[4]) for tokens 4 * quad to 4 * quad + 3, raw. A thread's quads and their order do not depend on kUnroll.
template <int kUnroll, class F>
__device__ __forceinline__ void each_quad(const Row& row, F&& f) {
  const int quads = row.vocab / 4;
#pragma unroll 1
  for (int first = threadIdx.x; first < quads; first += kThreads * kUnroll) {
    float4 raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int quad = first + u * kThreads;
      if (quad < quads) raw[u] = __ldg(reinterpret_cast<const float4*>(row.logits) + quad);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int quad = first + u * kThreads;
      if (quad < quads) {
        float x[4] = {raw[u].x, raw[u].y, raw[u].z, raw[u].w};
        f(quad, x);
      }
    }
  }
}

__device__ __forceinline__ float largest(const float (&x)[4]) { return fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])); }

// NaN and +inf: a maximum overlooks the one, an exponential takes the other for a number.
__device__ __forceinline__ bool broken(const float (&x)[4]) {
  return !(x[0] < INFINITY) || !(x[1] < INFINITY) || !(x[2] < INFINITY) || !(x[3] < INFINITY);
}

struct Softmax {
  float top = -INFINITY, sum = 0.0f;

  __device__ __forceinline__ void add(const float (&x)[4]) {
    const float here = largest(x);
    if (here == -INFINITY) return;
    if (here > top) {
      sum = __fmul_rn(sum, mass_of(top, here));
      top = here;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) sum = __fadd_rn(sum, mass_of(x[k], top));
  }

  // The sum over the block, given the maximum over the block.
  __device__ __forceinline__ float total(float most) const {
    return block_sum<kThreads>(top == -INFINITY ? 0.0f : __fmul_rn(sum, mass_of(top, most)), shared().warp_float[1]);
  }
};

// --- The draw ------------------------------------------------------------------------------------------------------

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3; 2011): 128 random bits per counter.
__device__ __forceinline__ uint4 philox(uint4 counter, uint32_t key0, uint32_t key1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
    counter = make_uint4(high1 ^ counter.y ^ key0, low1, high0 ^ counter.w ^ key1, low0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

struct Race {
  uint32_t seed0, seed1, step;
  float inverse;            // of the temperature
  float reference;          // scores are relative to this logit, so that none is large near the maximum
  float best = -INFINITY;
  int id = 0;

  __device__ __forceinline__ Race(const Row& row, float from)
      : seed0(row.setting(4)), seed1(row.setting(5)), step(row.setting(3)), inverse(1.0f / fmaxf(row.number(0), kLeastTemperature)),
        reference(from) {}

  __device__ __forceinline__ uint4 bits(int quad) const {
    return philox(make_uint4(static_cast<uint32_t>(quad), step, 0u, 0u), seed0, seed1);
  }

  // G = -log(-log(1 - v)) with v uniform in (0, 1); the tokens that win have a v near 0, where it has all its 32 bits.
  __device__ __forceinline__ void offer(float x, int token, uint32_t random) {
    const float v = fminf(__fmaf_rn(__uint2float_rn(random), 0x1p-32f, 0x1p-33f), 0x1.fffffep-1f);
    const float tempered = __fmul_rn(__fsub_rn(x, reference), inverse);
    // -log(1 - v) >= v, so this bounds the score; nearly all tokens end here.
    if (__fadd_rn(__fsub_rn(tempered, __logf(v)), 1e-3f) <= best) return;
    const float score = __fsub_rn(tempered, __logf(-log1pf(-v)));
    if (score > best) {
      best = score;
      id = token;
    }
  }

  __device__ __forceinline__ void offer_one(float x, int token) {
    const uint4 four = bits(token >> 2);
    const uint32_t pair0 = token & 1 ? four.y : four.x, pair1 = token & 1 ? four.w : four.z;
    offer(x, token, token & 2 ? pair1 : pair0);
  }

  __device__ __forceinline__ void move(float to) {
    best = __fadd_rn(best, __fmul_rn(__fsub_rn(reference, to), inverse));
    reference = to;
  }
};

}  // namespace
}  // namespace albatross
