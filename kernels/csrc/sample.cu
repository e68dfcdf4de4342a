// One token per row: penalties, bias and masks, nucleus, top-k, temperature, one draw; then the token is recorded.
//
// A block per row, and no sort. The token is the maximum over the kept ones of logit / T + G, where G is a Gumbel number that
// depends on (seed, step, token) alone: the winner has the probabilities of the tempered softmax, in whatever order the tokens
// are looked at. Which tokens are kept: a histogram over the distance from the maximum holds the mass and the number of the
// tokens, the bin in which top_p or top_k is crossed is searched exactly, and both filters end in one cutoff. Masses are
// added as integers: sums do not depend on the order, so the same logits give the same token bit by bit.
#include "sample_cut.cuh"

namespace albatross {
namespace {

constexpr int kTops = 20;
constexpr int kFewRows = 128;   // up to here a block has its multiprocessor to itself
constexpr float kRescaleBelow = 1e-6f;
// Blocks that share a multiprocessor when there are many rows; before sm_80 it holds too few threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kResident = 2;
#else
constexpr int kResident = 3;
#endif

// --- The draw ------------------------------------------------------------------------------------------------------

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

// The winner among what nucleus and top_k leave. `own` is the maximum of this thread's tokens, `sum` the block's softmax sum.
template <int kUnroll>
__device__ __noinline__ First race_kept(const Row row, float own, float top, float sum, float top_p, int top_k) {
  float depth = kWidest;
  Limits limits{~0ull, top_k > 0 ? static_cast<uint32_t>(top_k) : UINT_MAX};
  if (top_p < 1.0f) {
    // Tokens deeper than this have less than half of the mass that top_p leaves out, all together: they cannot matter.
    depth = fminf(depth, __logf(2.0f * row.vocab / (sum * (1.0f - top_p))) + 0.01f);
    limits.mass = max(1ull, static_cast<Wide>(static_cast<double>(top_p) * sum * kMassUnit));
  }
  depth = fminf(depth, depth_of(own, top, limits));
  const Span span{own, top, depth < kWidest ? top - depth : -FLT_MAX, kBins / depth};
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
  const float depth = depth_of(own, top, {~0ull, static_cast<uint32_t>(wanted)});
  const float floor = depth < kWidest ? top - depth : -FLT_MAX;
  if (threadIdx.x == 0) s.listed = 0;
  __syncthreads();
  if (own >= floor) {
    each_quad<2>(row, [&](int quad, float(&x)[4]) { list(quad, x, floor, limit); });
  }
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
#pragma unroll
    for (int k = 0; k < 4; ++k) own = 4 * quad + k < limit ? fmaxf(own, x[k]) : own;
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
__global__ void __launch_bounds__(kThreads, kUnroll > 4 ? 1 : kResident) sample_kernel(const __grid_constant__ Sample p) {
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
      const float sum = Softmax{first.top, first.value}.total(top);
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
