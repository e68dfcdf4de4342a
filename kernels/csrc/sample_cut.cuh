// Which tokens of a row nucleus and top-k leave, found without a sort.
#pragma once

#include "sample_row.cuh"

namespace albatross {
namespace {

// Sums from the most likely token on at which the cut is reached; the largest number: never.
struct Limits {
  Wide mass;
  uint32_t count;

  __device__ __forceinline__ bool crossed(Wide m, uint32_t n) const { return m >= mass || n >= count; }
};

// Candidates are what lies at or above `floor`; bins count down from the maximum. `own` is the maximum of this thread's tokens.
struct Span {
  float own, top, floor, scale;

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

// A depth below `top` within which the limits are crossed, judged by the maximum of each thread's tokens: these maxima are tokens
// themselves, and hold most of the mass where the distribution has a peak. kWidest where that says nothing.
__device__ __noinline__ float depth_of(float own, float top, const Limits limits) {
  constexpr float per_nat = kBins / kWidest;
  const Span span{own, top, -FLT_MAX, per_nat};
  clear_histogram();
  __syncthreads();
  if (own > -INFINITY) add(span.bin(own), span.mass(own));
  __syncthreads();
  const int bin = find_crossing(limits, 0, 0).bin;
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
  if (span.own < span.floor) return;
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
  // In most rows most threads have no candidate at all.
  if (span.own >= span.floor) {
    each_quad<kUnroll>(row, [&](int quad, float(&x)[4]) {
      row.adjust(quad, x);
      if (largest(x) < span.floor) return;
      list(quad, x, span.floor, INT_MAX);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (x[k] >= span.floor) add(span.bin(x[k]), span.mass(x[k]));
      }
    });
  }
  __syncthreads();
}

}  // namespace
}  // namespace albatross
