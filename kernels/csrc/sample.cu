// One token per row: penalties, bias and masks, nucleus, top-k, temperature, one draw; then the token is recorded.
//
// A block per row, and no sort. The token is the maximum over the kept ones of logit / T + G, where G is a Gumbel number that
// depends on (seed, step, token) alone: the winner has the probabilities of the tempered softmax, in whatever order the tokens
// are looked at. Which tokens are kept: a histogram over the distance from the maximum holds the mass and the number of the
// tokens, the bin in which top_p or top_k is crossed is searched exactly, and both filters end in one cutoff. Masses are
// added as integers: sums do not depend on the order, so the same logits give the same token bit by bit.
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
constexpr int kTops = 20;
constexpr int kFewRows = 128;       // up to here a block has its multiprocessor to itself
constexpr float kLog2e = 1.44269504f;
constexpr float kMassUnit = 0x1p40f;    // of the largest token's mass, 1
constexpr float kWidest = 64.0f;        // nats below the maximum that the histogram can tell apart
constexpr float kRescaleBelow = 1e-6f;
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
    return marks_fit(p.words) ? shared().histogram.low : reinterpret_cast<uint32_t*>(rank() + even(p.words));
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

// What a thread finds in its tokens: their maximum; the best score, or the sum of exp(x - top); the id of the best.
struct First {
  float top, value;
  int id;
  bool bad;
};

template <int kUnroll>
__device__ __noinline__ First look_for_best(const Row row) {
  float best = -INFINITY;
  int id = 0;
  bool bad = false;
  each_quad<kUnroll>(row, [&](int quad, float(&x)[4]) {
    row.adjust(quad, x);
    bad |= broken(x);
    const float here = largest(x);
    if (here > best) {
      best = here;
      id = 4 * quad + (x[0] == here ? 0 : x[1] == here ? 1 : x[2] == here ? 2 : 3);
    }
  });
  return {best, best, id, bad};
}

template <int kUnroll>
__device__ __noinline__ First add_up(const Row row) {
  Softmax softmax;
  bool bad = false;
  each_quad<kUnroll>(row, [&](int quad, float(&x)[4]) {
    row.adjust(quad, x);
    bad |= broken(x);
    softmax.add(x);
  });
  return {softmax.top, softmax.sum, 0, bad};
}

template <int kUnroll>
__device__ __noinline__ First race_all(const Row row) {
  Race race(row, -INFINITY);
  bool bad = false;
  each_quad<kUnroll>(row, [&](int quad, float(&x)[4]) {
    row.adjust(quad, x);
    bad |= broken(x);
    const float here = largest(x);
    if (here == -INFINITY) return;
    if (here > race.reference) race.move(here);
    const uint4 bits = race.bits(quad);
    race.offer(x[0], 4 * quad, bits.x);
    race.offer(x[1], 4 * quad + 1, bits.y);
    race.offer(x[2], 4 * quad + 2, bits.z);
    race.offer(x[3], 4 * quad + 3, bits.w);
  });
  return {race.reference, race.best, race.id, bad};
}

// --- Which tokens are kept -----------------------------------------------------------------------------------------

// Sums from the most likely token on at which the cut is reached; the largest number: never.
struct Limits {
  Wide mass;
  uint32_t count;

  __device__ __forceinline__ bool crossed(Wide m, uint32_t n) const { return m >= mass || n >= count; }
};

// Candidates are what lies at or above `floor`; bins count down from the maximum.
struct Span {
  float top, floor, scale;

  __device__ __forceinline__ int bin(float x) const {
    return min(kBins - 1, __float2int_rz(__fmul_rn(__fsub_rn(top, x), scale)));
  }
  __device__ __forceinline__ Wide mass(float x) const { return __float2ull_rn(__fmul_rn(mass_of(x, top), kMassUnit)); }
};

// Kept: keys above `key`, and equals with ids up to `last_id`.
struct Cut {
  uint32_t key;
  int last_id;
};

// The first bin whose sums cross, and the sums before it. bin -1: none does.
struct Crossing {
  int bin;
  Wide mass;
  uint32_t count;
};

__device__ __forceinline__ void clear_histogram() {
  Histogram& h = shared().histogram;
#pragma unroll
  for (int i = threadIdx.x; i < kBins; i += kThreads) h.low[i] = h.high[i] = h.count[i] = 0;
}

__device__ __forceinline__ void add(int bin, Wide mass) {
  Histogram& h = shared().histogram;
  const uint32_t low = static_cast<uint32_t>(mass);
  const uint32_t carry = low > ~atomicAdd(&h.low[bin], low);
  const uint32_t high = static_cast<uint32_t>(mass >> 32) + carry;
  if (high) atomicAdd(&h.high[bin], high);
  atomicAdd(&h.count[bin], 1u);
}

// `mass` and `count` are the sums before the first bin. Ends with a barrier, after which the histogram is free again.
__device__ __noinline__ Crossing find_crossing(const Limits limits, Wide mass, uint32_t count) {
  Shared& s = shared();
  const Histogram& h = s.histogram;
  const int bin = 2 * threadIdx.x;
  const Wide mass0 = static_cast<Wide>(h.high[bin]) << 32 | h.low[bin];
  const Wide mass1 = static_cast<Wide>(h.high[bin + 1]) << 32 | h.low[bin + 1];
  const uint32_t count0 = h.count[bin], count1 = h.count[bin + 1];
  if (threadIdx.x == 0) s.crossing_bin = -1;
  Wide all;
  uint32_t number;
  mass += exclusive_sum(mass0 + mass1, s.warp_wide, all);
  count += exclusive_sum(count0 + count1, s.warp_count, number);
  if (!limits.crossed(mass, count) && limits.crossed(mass + mass0 + mass1, count + count0 + count1)) {
    const bool second = !limits.crossed(mass + mass0, count + count0);
    s.crossing_bin = bin + second;
    s.crossing_mass = mass + (second ? mass0 : 0);
    s.crossing_count = count + (second ? count0 : 0);
  }
  __syncthreads();
  return {s.crossing_bin, s.crossing_mass, s.crossing_count};
}

// A depth below `top` within which at least `count` tokens lie, given the maximum of each thread's tokens: every maximum is a
// token. kWidest where that says nothing.
__device__ __noinline__ float depth_of(float own, float top, int count) {
  if (count > kThreads) return kWidest;
  constexpr float per_nat = kBins / kWidest;
  clear_histogram();
  __syncthreads();
  if (own > -INFINITY) atomicAdd(&shared().histogram.count[min(kBins - 1, __float2int_rz((top - own) * per_nat))], 1u);
  __syncthreads();
  const int bin = find_crossing({~0ull, static_cast<uint32_t>(count)}, 0, 0).bin;
  return bin < 0 || bin >= kBins - 2 ? kWidest : (bin + 2) / per_nat;
}

// f(token, x) for every candidate: from the list when all are in it, else from the row.
template <class F>
__device__ __forceinline__ void each_candidate(const Row& row, const Span& span, F&& f) {
  if (shared().listed <= kListed) {
#pragma unroll 1
    for (int i = threadIdx.x; i < shared().listed; i += kThreads) f(shared().id[i], shared().value[i]);
    return;
  }
  each_quad<2>(row, [&](int quad, float(&x)[4]) {
    row.adjust(quad, x);
    if (largest(x) < span.floor) return;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (x[k] >= span.floor) f(4 * quad + k, x[k]);
    }
  });
}

// Appends to the list until it is full; `listed` above kListed says that some are missing.
__device__ __forceinline__ void list(int quad, const float (&x)[4], float floor, int limit) {
  Shared& s = shared();
  int passing = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) passing += x[k] >= floor && 4 * quad + k < limit;
  if (!passing || *static_cast<volatile int*>(&s.listed) > kListed) return;
  int at = atomicAdd(&s.listed, passing);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (x[k] >= floor && 4 * quad + k < limit) {
      if (at < kListed) {
        s.id[at] = 4 * quad + k;
        s.value[at] = x[k];
      }
      ++at;
    }
  }
}

// The id of the `room`-th candidate with this key, in the order of ids.
__device__ __noinline__ int last_of_equals(const Row row, const Span& span, uint32_t key, uint32_t room) {
  uint32_t* marks = row.marks();
#pragma unroll 1
  for (int i = threadIdx.x; i < row.p.words; i += kThreads) marks[i] = 0;
  if (threadIdx.x == 0) shared().last_id = INT_MAX;
  __syncthreads();
  each_candidate(row, span, [&](int token, float x) {
    if (order_key(x) == key) atomicOr(&marks[token >> 5], 1u << (token & 31));
  });
  __syncthreads();
  const int each = ceil_div(row.p.words, kThreads);
  const int first = threadIdx.x * each, last = min(row.p.words, first + each);
  uint32_t mine = 0, total;
#pragma unroll 1
  for (int i = first; i < last; ++i) mine += __popc(marks[i]);
  uint32_t before = exclusive_sum(mine, shared().warp_count, total);
  if (before < room && before + mine >= room) {
    int word = first;
    for (uint32_t n; before + (n = __popc(marks[word])) < room; ++word) before += n;
    uint32_t bits = marks[word];
    while (++before < room) bits &= bits - 1;
    shared().last_id = 32 * word + __ffs(bits) - 1;
  }
  __syncthreads();
  return shared().last_id;
}

// The cutoff, exactly: where the entries of the crossing bin are too many to compare pair by pair, a finer histogram over
// their keys follows.
__device__ __noinline__ Cut find_cut(const Row row, const Span span, const Limits limits) {
  Shared& s = shared();
  Crossing c = find_crossing(limits, 0, 0);
  if (c.bin < 0) return {0, INT_MAX};
  const int bin = c.bin;
  bool narrowed = false;
  uint32_t low = 0, high = ~0u;
  int inside;
  while (true) {
    if (threadIdx.x == 0) s.inside = 0, s.key_low = ~0u, s.key_high = 0, s.cut = 0;
    __syncthreads();
    uint32_t least = ~0u, most = 0;
    bool full = false;
    each_candidate(row, span, [&](int, float x) {
      const uint32_t key = order_key(x);
      if (narrowed ? key < low || key > high : span.bin(x) != bin) return;
      least = min(least, key);
      most = max(most, key);
      if (full) return;
      const int at = atomicAdd(&s.inside, 1);
      full = at >= kInside;
      if (!full) s.entries.key[at] = key, s.entries.mass[at] = span.mass(x);
    });
    if (least <= most) atomicMin(&s.key_low, least), atomicMax(&s.key_high, most);
    __syncthreads();
    inside = s.inside, low = s.key_low, high = s.key_high;
    if (inside <= kInside || low == high) break;
    clear_histogram();
    __syncthreads();
    const int shift = max(0, 32 - __clz(high - low) - 10);
    static_assert(kBins == 1 << 10, "the shift leaves ten bits");
    each_candidate(row, span, [&](int, float x) {
      const uint32_t key = order_key(x);
      if (key >= low && key <= high) add((high - key) >> shift, span.mass(x));
    });
    __syncthreads();
    c = find_crossing(limits, c.mass, c.count);
    high -= static_cast<uint32_t>(c.bin) << shift;
    low = high - low < 1u << shift ? low : high - (1u << shift) + 1;
    narrowed = true;
  }
  uint32_t key = low, above = c.count, equal = UINT_MAX;
  if (inside <= kInside) {
    const bool mine = static_cast<int>(threadIdx.x) < inside;
    const uint32_t own = mine ? s.entries.key[threadIdx.x] : 0;
    if (mine) {
      Wide mass = c.mass;
      uint32_t count = c.count;
#pragma unroll 1
      for (int i = 0; i < inside; ++i) {
        const bool reached = s.entries.key[i] >= own;
        mass += reached ? s.entries.mass[i] : 0;
        count += reached;
      }
      if (limits.crossed(mass, count)) atomicMax(&s.cut, own);
    }
    __syncthreads();
    key = s.cut;
    above += __syncthreads_count(mine && own > key);
    equal = __syncthreads_count(mine && own == key);
  }
  if (limits.count == UINT_MAX || equal <= limits.count - above) return {key, INT_MAX};
  __syncthreads();
  return {key, last_of_equals(row, span, key, limits.count - above)};
}

// Fills the histogram and the list with the candidates.
template <int kUnroll>
__device__ __noinline__ void collect(const Row row, const Span span) {
  clear_histogram();
  if (threadIdx.x == 0) shared().listed = 0;
  __syncthreads();
  each_quad<kUnroll>(row, [&](int quad, float(&x)[4]) {
    row.adjust(quad, x);
    if (largest(x) < span.floor) return;
    list(quad, x, span.floor, INT_MAX);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (x[k] >= span.floor) add(span.bin(x[k]), span.mass(x[k]));
    }
  });
  __syncthreads();
}

// The winner among what nucleus and top_k leave. `own` is the maximum of this thread's tokens, `sum` the block's softmax sum.
template <int kUnroll>
__device__ __noinline__ First race_kept(const Row row, float own, float top, float sum, float top_p, int top_k) {
  // Tokens deeper than this have less than half of the mass that top_p leaves out, all together: they cannot matter.
  float depth = kWidest;
  Limits limits{~0ull, UINT_MAX};
  if (top_p < 1.0f) {
    depth = fminf(depth, __logf(2.0f * row.vocab / (sum * (1.0f - top_p))) + 0.01f);
    limits.mass = max(1ull, static_cast<Wide>(static_cast<double>(top_p) * sum * kMassUnit));
  }
  if (top_k > 0) {
    depth = fminf(depth, depth_of(own, top, top_k));
    limits.count = top_k;
  }
  const Span span{top, depth < kWidest ? top - depth : -FLT_MAX, kBins / depth};
  collect<kUnroll>(row, span);
  const Cut cut = find_cut(row, span, limits);
  Race race(row, top);
  each_candidate(row, span, [&](int token, float x) {
    const uint32_t key = order_key(x);
    if (key > cut.key || (key == cut.key && token <= cut.last_id)) race.offer_one(x, token);
  });
  return {own, race.best, race.id, false};
}

// --- Log-probabilities ---------------------------------------------------------------------------------------------

// The `wanted` best tokens below `limit`, best first; -1 where there are no more.
__device__ void write_tops(const Row& row, int* tops, int wanted, int limit, float own, float base) {
  Shared& s = shared();
  if (threadIdx.x < kTops) tops[threadIdx.x] = -1;
  const float top = block_max<kThreads>(own, s.warp_float[0]);
  const float depth = depth_of(own, top, wanted);
  const float floor = depth < kWidest ? top - depth : -FLT_MAX;
  if (threadIdx.x == 0) s.listed = 0;
  __syncthreads();
  each_quad<2>(row, [&](int quad, float(&x)[4]) { list(quad, x, floor, limit); });
  __syncthreads();
  const int listed = s.listed;
  if (listed <= kListed) {
#pragma unroll 1
    for (int i = threadIdx.x; i < listed; i += kThreads) {
      const Wide own_rank = ranked(s.value[i], s.id[i]);
      int better = 0;
#pragma unroll 1
      for (int j = 0; j < listed && better < wanted; ++j) better += ranked(s.value[j], s.id[j]) > own_rank;
      if (better < wanted) tops[better] = s.id[i], tops[kTops + better] = __float_as_int(s.value[i] - base);
    }
    return;
  }
  Wide last = ~0ull;
#pragma unroll 1
  for (int i = 0; i < wanted; ++i) {
    Wide best = 0;
    each_quad<2>(row, [&](int quad, float(&x)[4]) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const Wide rank = ranked(x[k], 4 * quad + k);
        if (4 * quad + k < limit && rank < last && rank > best) best = rank;
      }
    });
    last = block_most(best);
    if (last == 0) return;
    const int token = ranked_id(last);
    if (threadIdx.x == 0) tops[i] = token, tops[kTops + i] = __float_as_int(row.logits[token] - base);
  }
}

// Of the raw logits: the token's log-softmax, and the best alternatives. False when the numbers are not finite.
__device__ __noinline__ bool write_logprobs(const Row row, int* tops, int token, int wanted, int limit, float& logprob) {
  Softmax raw;
  float own = -INFINITY;
  each_quad<2>(row, [&](int quad, float(&x)[4]) {
    raw.add(x);
    if (4 * quad + 3 < limit) own = fmaxf(own, largest(x));
  });
  __syncthreads();
  const float top = block_max<kThreads>(raw.top, shared().warp_float[0]);
  const float sum = raw.total(top);
  if (!(sum < INFINITY) || !(top < INFINITY)) return false;
  const float base = top + logf(sum);
  logprob = row.logits[token] - base;
  __syncthreads();
  if (wanted > 0) write_tops(row, tops, min(wanted, kTops), limit, own, base);
  return true;
}

// --- Before and after ----------------------------------------------------------------------------------------------

// Masks to shared memory; the touched tokens get ranks, and what is added to their logits is fetched all at once: as a chain
// of single accesses inside the passes it would cost more than reading the row.
__device__ void prepare(Row& row, bool adjusts, bool grammar) {
  const Sample& p = row.p;
  const int64_t at = static_cast<int64_t>(row.slot) * p.words;
#pragma unroll 1
  for (int i = threadIdx.x; i < p.words; i += kThreads) {
    const uint32_t allowed = grammar ? p.allowed[at + i] & p.grammar[at + i] : p.allowed[at + i];
    masks()[i] = make_uint2(allowed, adjusts ? p.touched[at + i] : 0);
  }
  __syncthreads();
  if (!adjusts) return;
  Shared& s = shared();
  const int each = ceil_div(p.words, kThreads);
  const int first = threadIdx.x * each, last = min(p.words, first + each);
  uint32_t mine = 0, total;
#pragma unroll 1
  for (int i = first; i < last; ++i) mine += __popc(masks()[i].y);
  uint32_t before = exclusive_sum(mine, s.warp_count, total);
  row.adjusted = total;
  if (total > kDeltas) return;
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    row.rank()[i] = static_cast<uint16_t>(before);
#pragma unroll 1
    for (uint32_t bits = masks()[i].y; bits; bits &= bits - 1) s.ids[before++] = 32 * i + __ffs(bits) - 1;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < row.adjusted; i += kThreads) s.delta[i] = delta_of(p, row.slot, s.ids[i]);
  __syncthreads();
}

// Counts the token. All threads must be past their last look at the counts.
__device__ __noinline__ void record(const Row row, int token, float presence, float frequency, float scale) {
  const Sample& p = row.p;
  const int slot = row.slot;
  const int64_t at = static_cast<int64_t>(slot) * p.vocab, word = static_cast<int64_t>(slot) * p.words + (token >> 5);
  const uint32_t bit = 1u << (token & 31);
  if (frequency != 0.0f && scale < kRescaleBelow) {
#pragma unroll 1
    for (int i = threadIdx.x; i < row.p.words; i += kThreads) {
#pragma unroll 1
      for (uint32_t bits = masks()[i].y; bits; bits &= bits - 1) p.counts[at + 32 * i + __ffs(bits) - 1] *= scale;
    }
    scale = 1.0f;
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  if (frequency != 0.0f) {
    if (!(p.uncounted[token >> 5] & bit)) p.counts[at + token] += 1.0f / scale;
    p.numbers[8 * slot + 5] = scale;
  }
  const uint32_t seen = p.seen[word];
  if (!(seen & bit)) {
    p.bias[at + token] -= presence;
    p.seen[word] = seen | bit;
  }
  p.touched[word] |= bit;
}

template <int kUnroll>
__global__ void __launch_bounds__(kThreads, kUnroll > 4 ? 1 : 3) sample_kernel(const __grid_constant__ Sample p) {
  const int slot = p.slots[blockIdx.x];
  int4* result = reinterpret_cast<int4*>(p.results) + blockIdx.x;
  if (slot == p.scratch) {
    if (threadIdx.x == 0) *result = make_int4(0, 0, 0, 0);
    return;
  }
  const float* numbers = p.numbers + 8 * slot;
  const int* settings = p.settings + 8 * slot;
  const int top_k = settings[0], flags = settings[1];
  const float top_p = numbers[1];
  Shared& s = shared();
  Row row{p, p.logits + static_cast<int64_t>(blockIdx.x) * p.vocab, slot, p.vocab};
  prepare(row, flags & (kPenalised | kTouched), flags & kGrammar);

  const bool cuts = top_p < 1.0f || top_k > 0;
  First first;
  if (flags & kGreedy) {
    first = look_for_best<kUnroll>(row);
  } else if (cuts) {
    first = add_up<kUnroll>(row);
  } else {
    first = race_all<kUnroll>(row);
  }
  const float top = block_max<kThreads>(first.top, s.warp_float[0]);
  int status = __syncthreads_or(first.bad) || !(top < INFINITY);
  if (!status && top == -INFINITY) {
    bool open = false;
#pragma unroll 1
    for (int i = threadIdx.x; i < row.p.words; i += kThreads) open |= masks()[i].x != 0;
    status = __syncthreads_or(open) ? 1 : 2;
  }
  int token = 0;
  float logprob = 0.0f;
  if (!status) {
    if (cuts && !(flags & kGreedy)) {
      const float sum = block_sum<kThreads>(first.top == -INFINITY ? 0.0f : __fmul_rn(first.value, mass_of(first.top, top)), s.warp_float[1]);
      first = race_kept<kUnroll>(row, first.top, top, sum, top_p, top_k);
    } else if (!(flags & kGreedy)) {
      first.value = __fadd_rn(first.value, __fmul_rn(__fsub_rn(first.top, top), 1.0f / fmaxf(numbers[0], kLeastTemperature)));
    }
    token = ranked_id(block_most(ranked(first.value, first.id)));
    if (flags & kLogprobs) {
      int* tops = p.tops + 2 * kTops * static_cast<int64_t>(blockIdx.x);
      if (!write_logprobs(row, tops, token, settings[2], settings[6], logprob)) status = 1, token = 0;
    }
    const float presence = numbers[2], frequency = numbers[3], scale = numbers[5] * numbers[4];
    __syncthreads();
    if (!status && flags & kPenalised) record(row, token, presence, frequency, scale);
  }
  if (threadIdx.x == 0) {
    // A grammar's mask is meant for one token.
    p.settings[8 * slot + 1] = flags & ~kGrammar;
    p.settings[8 * slot + 3] += 1;
    p.last[slot] = token;
    *result = make_int4(token, status, __float_as_int(logprob), flags & kLogprobs ? 1 + settings[2] : 0);
  }
}

}  // namespace

cudaError_t sample(const Sample& p, cudaStream_t stream) {
  if (p.rows <= 0) return cudaSuccess;
  auto* kernel = p.rows <= kFewRows ? sample_kernel<8> : sample_kernel<2>;
  const int bytes = shared_bytes(p.words);
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  kernel<<<p.rows, kThreads, bytes, stream>>>(p);
  return ok();
}

}  // namespace albatross
