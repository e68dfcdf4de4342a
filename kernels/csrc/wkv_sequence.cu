// The time mix between its products for rows of several tokens: bound by the time from one token to the next.
//
// A block walks through one head of one row, its state in float32 registers, in chunks of 16 tokens. Half of the block
// advances the state; the other half turns the next chunks' vectors into what that takes, and finishes the outputs of the
// chunk before. They meet once a chunk, and at no other barrier.
//
// Within a chunk the decay is taken out of the recurrence. With W_t the product of the decays of the chunk's tokens up to
// t, per key, and Z_t = S_t diag(1 / W_t):
//   Z_t = Z_(t-1) - (Z_(t-1) (W_(t-1) kk_t)) (b_t / W_t)^T + v_t (k_t / W_t)^T,   S_t r_t from the old state:
//   y_t = Z_(t-1) (W_t r_t) - (Z_(t-1) (W_(t-1) kk_t)) (b_t . r_t) + v_t (k_t . r_t).
// A decay is above exp(-0.6066), so W stays above 6e-5 over 16 tokens, and nothing leaves the range of float32.
#include "wkv.cuh"

namespace albatross {
namespace {

constexpr int kChunk = 16;
constexpr int kTeam = 128;             // threads of each half of the block
constexpr int kKeys = 8;               // neighbouring keys of a thread
constexpr int kLanes = kHeadSize / kKeys;
constexpr int kRows = 4;               // neighbouring rows of the state of a thread
static_assert(kTeam == kChunk * kLanes && kTeam == kHeadSize / kRows * kLanes, "a token, or four rows, for every eight threads");

// One chunk's vectors as the recurrence takes them. Those over keys have the first fours of all lanes side by side and
// then the second, so that no two lanes read the same bank: key 8 c + e is at e / 4 * 32 + 4 c + e % 4.
struct Chunk {
  float decayed_r[kChunk][kHeadSize];   // W_t r_t
  float decayed_kk[kChunk][kHeadSize];  // W_(t-1) kk_t
  float b[kChunk][kHeadSize];           // b_t / W_t
  float k[kChunk][kHeadSize];           // k_t / W_t
  float v[kChunk][kHeadSize];           // by row; y takes the place of v
  float decay[kHeadSize];               // W of the last token
  float2 scalars[kChunk];               // b_t . r_t and k_t . r_t
};

struct Shared {
  Chunk chunk[2];
  float totals[2][kTeam / kWarp][kHeadSize];  // logarithm of the decay over each warp's tokens of a chunk
};

// Where the block works, and on what.
struct Place {
  int64_t first;   // offset of the head's channels at the row's first token
  int channel;     // first channel of the head
  int length;
};

__device__ __forceinline__ void put8(float* to, int lane, const float (&value)[kKeys]) {
  *reinterpret_cast<float4*>(to + lane * 4) = make_float4(value[0], value[1], value[2], value[3]);
  *reinterpret_cast<float4*>(to + kHeadSize / 2 + lane * 4) = make_float4(value[4], value[5], value[6], value[7]);
}

__device__ __forceinline__ void get8(const float* from, int lane, float (&value)[kKeys]) {
  const float4 low = *reinterpret_cast<const float4*>(from + lane * 4);
  const float4 high = *reinterpret_cast<const float4*>(from + kHeadSize / 2 + lane * 4);
  value[0] = low.x, value[1] = low.y, value[2] = low.z, value[3] = low.w;
  value[4] = high.x, value[5] = high.y, value[6] = high.z, value[7] = high.w;
}

// --- The half that prepares and finishes: eight threads for a token --------------------------------------------------

// What a chunk's finish needs of its preparation.
struct Kept {
  float v[kKeys];
  float bonus;
};

struct Preparer {
  static constexpr int kTokens = kWarp / kLanes;  // of a warp

  const Wkv& p;
  const Place& place;
  Shared& shared;
  int thread;   // 0 to kTeam - 1

  __device__ int time() const { return thread / kLanes; }
  __device__ int lane() const { return thread % kLanes; }
  __device__ bool valid(int chunk) const { return chunk * kChunk + time() < place.length; }
  __device__ int64_t offset(int chunk) const {
    return place.first + static_cast<int64_t>(chunk * kChunk + time()) * p.width + lane() * kKeys;
  }
  __device__ void load(const half* from, int64_t at, bool valid, float (&value)[kKeys]) const {
    to_float(valid ? load8_const(from + at) : Half8{}, value);
  }
  // Asked for long before it is used.
  __device__ __forceinline__ Half8 fetch(const half* from, int chunk) const {
    return valid(chunk) ? load8_const(from + offset(chunk)) : Half8{};
  }
  __device__ void load(const half* constants, float (&value)[kKeys]) const {
    to_float(load8_const(constants + place.channel + lane() * kKeys), value);
  }

  __device__ int warp() const { return thread / kWarp; }
  __device__ int in_warp() const { return time() % kTokens; }

  // The first part of a chunk's preparation: the sum of the logarithms of the decay over this warp's tokens up to this one, in ``sum``.
  // The other warps' tokens come in a turn later, when all have put theirs down.
  __device__ __forceinline__ void begin(int chunk, Half8 w_up, float (&sum)[kKeys]) const {
    const bool here = valid(chunk);
    float base[kKeys];
    to_float(w_up, sum);
    load(p.w0, base);
    const float scale = here ? kDecayScale : 0.0f;
#pragma unroll
    for (int e = 0; e < kKeys; ++e) {
      sum[e] = scale * sigmoid(base[e] + sum[e]);
#pragma unroll
      for (int step = 1; step < kTokens; step *= 2) {
        const float before = __shfl_up_sync(kAllLanes, sum[e], step * kLanes);
        if (in_warp() >= step) sum[e] += before;
      }
    }
    if (in_warp() == kTokens - 1) put8(shared.totals[chunk % 2][warp()], lane(), sum);
  }

  // From the sums over this warp's tokens to those over all tokens up to this one, and up to the one before it.
  __device__ __forceinline__ void accumulate(int chunk, float (&with)[kKeys], float (&without)[kKeys]) const {
#pragma unroll
    for (int e = 0; e < kKeys; ++e) {
      const float before = __shfl_up_sync(kAllLanes, with[e], kLanes);
      without[e] = in_warp() == 0 ? 0.0f : before;
    }
#pragma unroll 1
    for (int i = 0; i < warp(); ++i) {
      float total[kKeys];
      get8(shared.totals[chunk % 2][i], lane(), total);
#pragma unroll
      for (int e = 0; e < kKeys; ++e) {
        with[e] += total[e];
        without[e] += total[e];
      }
    }
  }

  __device__ void values(int64_t at, bool valid, float (&v)[kKeys]) const {
    load(p.v, at, valid, v);
    if (p.v_up == nullptr) {
      if (valid) store8(p.v_first + at, to_half8(v));
      return;
    }
    float up[kKeys], base[kKeys], first[kKeys];
    load(p.v_up, at, valid, up);
    load(p.v_first, at, valid, first);
    load(p.v0, base);
#pragma unroll
    for (int e = 0; e < kKeys; ++e) v[e] = lerp(v[e], first[e], sigmoid(base[e] + up[e]));
  }

  // The second part, a turn after the first; ``with`` comes from there and is used up. A chunk's tokens past the end of the row stay
  // zero: they neither decay the state nor add to it.
  __device__ __forceinline__ void complete(int chunk, float (&with)[kKeys], Kept& kept) const {
    Chunk& out = shared.chunk[chunk % 2];
    const bool here = valid(chunk);
    const int64_t at = offset(chunk);
    float r[kKeys], k[kKeys], a[kKeys], without[kKeys], base[kKeys];
    load(p.r, at, here, r);
    load(p.k, at, here, k);
    load(p.a_up, at, here, a);
    values(at, here, kept.v);
    put_rows(out.v[time()], kept.v);
    accumulate(chunk, with, without);

    float kk[kKeys], k_a[kKeys], r_k[kKeys];
    load(p.a0, base);
    load(p.k_k, kk);
    load(p.k_a, k_a);
    load(p.r_k, r_k);
    float squares = 0.0f, b_r = 0.0f, k_r = 0.0f, bonus = 0.0f;
#pragma unroll
    for (int e = 0; e < kKeys; ++e) {
      a[e] = sigmoid(base[e] + a[e]);
      kk[e] *= k[e];
      k[e] = rated_key(k[e], a[e], k_a[e]);
      squares = fmaf(kk[e], kk[e], squares);
      b_r = fmaf(kk[e] * a[e], r[e], b_r);
      k_r = fmaf(k[e], r[e], k_r);
      bonus = fmaf(k[e] * r[e], r_k[e], bonus);
    }
    const float scale = inverse_norm(warp_sum<kLanes>(squares));
    b_r = warp_sum<kLanes>(b_r) * scale;
    k_r = warp_sum<kLanes>(k_r);
    kept.bonus = warp_sum<kLanes>(bonus);
    if (lane() == 0) out.scalars[time()] = make_float2(b_r, k_r);
#pragma unroll
    for (int e = 0; e < kKeys; ++e) {
      const float grown = __expf(-with[e]), decay = __expf(with[e]);
      kk[e] *= scale;
      r[e] *= decay;
      k[e] *= grown;
      base[e] = kk[e] * a[e] * grown;
      kk[e] *= __expf(without[e]);
      with[e] = decay;
    }
    put8(out.decayed_r[time()], lane(), r);
    put8(out.decayed_kk[time()], lane(), kk);
    put8(out.b[time()], lane(), base);
    put8(out.k[time()], lane(), k);
    if (time() == kChunk - 1) put8(out.decay, lane(), with);
  }

  // GroupNorm of y, bonus and gate.
  __device__ __forceinline__ void finish(int chunk, const Kept& kept) const {
    const bool here = valid(chunk);
    const int64_t at = offset(chunk);
    float y[kKeys], g[kKeys], weight[kKeys], bias[kKeys];
    load(p.g, at, here, g);
    load(p.ln_weight, weight);
    load(p.ln_bias, bias);
    get_rows(shared.chunk[chunk % 2].v[time()], y);
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int e = 0; e < kKeys; ++e) sum += y[e];
    const float mean = warp_sum<kLanes>(sum) * (1.0f / kHeadSize);
#pragma unroll
    for (int e = 0; e < kKeys; ++e) {
      y[e] -= mean;
      squares = fmaf(y[e], y[e], squares);
    }
    const float scale = rsqrtf(warp_sum<kLanes>(squares) * (1.0f / kHeadSize) + kGroupNormEps);
#pragma unroll
    for (int e = 0; e < kKeys; ++e) y[e] = (fmaf(y[e] * scale, weight[e], bias[e]) + kept.bonus * kept.v[e]) * g[e];
    if (here) store8(p.out + at, to_half8(y));
  }

  __device__ void put_rows(float* to, const float (&value)[kKeys]) const {
    float4* const own = reinterpret_cast<float4*>(to + lane() * kKeys);
    own[0] = make_float4(value[0], value[1], value[2], value[3]);
    own[1] = make_float4(value[4], value[5], value[6], value[7]);
  }
  __device__ void get_rows(const float* from, float (&value)[kKeys]) const {
    const float4* const own = reinterpret_cast<const float4*>(from + lane() * kKeys);
    const float4 low = own[0], high = own[1];
    value[0] = low.x, value[1] = low.y, value[2] = low.z, value[3] = low.w;
    value[4] = high.x, value[5] = high.y, value[6] = high.z, value[7] = high.w;
  }
};

// --- The half that advances the state: a tile of 4 rows by 8 keys for a thread ----------------------------------------

struct Tile {
  float at[kRows][kKeys];
};

// One token's vectors, read while the token before is worked on.
struct Token {
  float decayed_kk[kKeys], decayed_r[kKeys], k[kKeys];
  float4 v;
  float2 scalars;

  __device__ __forceinline__ void load(const Chunk& chunk, int time, int lane, int row) {
    get8(chunk.decayed_kk[time], lane, decayed_kk);
    get8(chunk.decayed_r[time], lane, decayed_r);
    get8(chunk.k[time], lane, k);
    v = *reinterpret_cast<const float4*>(chunk.v[time] + row);
    scalars = chunk.scalars[time];
  }
};

// What the next token waits for comes first: the sum S kk, which every lane gets in three exchanges. The rest fills the time
// that they take, and the reads of shared memory stand behind them, because they use the same way.
__device__ __forceinline__ void advance(Tile& state, const Token& token, Token& next, Chunk& chunk, int time, int lane, int row) {
  float removed[kRows], y[kRows], b[kKeys];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    removed[i] = state.at[i][0] * token.decayed_kk[0];
#pragma unroll
    for (int e = 1; e < kKeys; ++e) removed[i] = fmaf(state.at[i][e], token.decayed_kk[e], removed[i]);
  }
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) removed[i] += __shfl_xor_sync(kAllLanes, removed[i], distance);
  }
  get8(chunk.b[time], lane, b);
  next.load(chunk, (time + 1) % kChunk, lane, row);  // past the last token: read in vain
  const float v[kRows] = {token.v.x, token.v.y, token.v.z, token.v.w};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    y[i] = state.at[i][0] * token.decayed_r[0];
#pragma unroll
    for (int e = 1; e < kKeys; ++e) y[i] = fmaf(state.at[i][e], token.decayed_r[e], y[i]);
#pragma unroll
    for (int e = 0; e < kKeys; ++e) state.at[i][e] = fmaf(v[i], token.k[e], state.at[i][e]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int e = 0; e < kKeys; ++e) state.at[i][e] = fmaf(-removed[i], b[e], state.at[i][e]);
  }
  // Nobody waits for y: each exchange halves what a lane still has, and lane 0 to 3 ends with row 2 * bit 0 + bit 1.
  const bool odd = lane & 1, high = lane & 2;
  const float first = (odd ? y[2] : y[0]) + __shfl_xor_sync(kAllLanes, odd ? y[0] : y[2], 1);
  const float second = (odd ? y[3] : y[1]) + __shfl_xor_sync(kAllLanes, odd ? y[1] : y[3], 1);
  float sum = (high ? second : first) + __shfl_xor_sync(kAllLanes, high ? first : second, 2);
  sum += __shfl_xor_sync(kAllLanes, sum, 4);
  const float gone = odd ? (high ? removed[3] : removed[2]) : (high ? removed[1] : removed[0]);
  const float value = odd ? (high ? v[3] : v[2]) : (high ? v[1] : v[0]);
  // y overwrites v of the same rows, which belong to eight lanes of this warp: all of them read v one token ago, before the
  // exchanges since. The fence keeps a lane that runs ahead from reading the chunk's first y as v.
  if (lane < kRows) chunk.v[time][row + 2 * odd + high] = fmaf(value, token.scalars.y, fmaf(-gone, token.scalars.x, sum));
  __syncwarp();
}

__device__ __forceinline__ void advance_chunk(Tile& state, Chunk& chunk, int tokens, int lane, int row) {
  Token even, odd;
  even.load(chunk, 0, lane, row);
  __syncwarp();
  // Two tokens a turn, so that the two sets of registers need no copies (nor do they in a loop that tests at its end). After an
  // odd last one comes a token of zeros, which changes nothing.
  int time = 0;
#pragma unroll 1
  do {
    advance(state, even, odd, chunk, time, lane, row);
    advance(state, odd, even, chunk, time + 1, lane, row);
    time += 2;
  } while (time < tokens);
  float decay[kKeys];
  get8(chunk.decay, lane, decay);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int e = 0; e < kKeys; ++e) state.at[i][e] *= decay[e];
  }
}

template <class State>
__device__ __forceinline__ void load_tile(Tile& tile, const State* from) {
  constexpr int keys = Packed<State>::keys;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int e = 0; e < kKeys; e += keys) {
      const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from + i * kHeadSize + e));
#pragma unroll
      for (int four = 0; four < keys / 4; ++four) {
        const float4 value = Packed<State>::get(bits, four);
        float* to = tile.at[i] + e + 4 * four;
        to[0] = value.x, to[1] = value.y, to[2] = value.z, to[3] = value.w;
      }
    }
  }
}

template <class State>
__device__ __forceinline__ void store_tile(const Tile& tile, State* to) {
  constexpr int keys = Packed<State>::keys;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int e = 0; e < kKeys; e += keys) {
      uint4 bits;
#pragma unroll
      for (int four = 0; four < keys / 4; ++four) {
        const float* from = tile.at[i] + e + 4 * four;
        Packed<State>::set(bits, four, make_float4(from[0], from[1], from[2], from[3]));
      }
      __stcs(reinterpret_cast<uint4*>(to + i * kHeadSize + e), bits);
    }
  }
}

template <class State>
__global__ void __launch_bounds__(2 * kTeam, 2) sequence_kernel(Wkv p) {
  __shared__ alignas(16) Shared shared;
  const int head = blockIdx.x, row = blockIdx.y;
  const int start = p.starts[row], slot = p.slots[row];
  const Place place = {static_cast<int64_t>(start) * p.width + head * kHeadSize, head * kHeadSize, p.starts[row + 1] - start};
  if (place.length <= 1 || slot == p.scratch) return;
  const int chunks = ceil_div(place.length, kChunk);

  // In a turn one half advances a chunk; the other finishes the chunk before it, completes the one after it and begins the next. They meet
  // between turns; two turns come before the first chunk's.
  if (threadIdx.x >= kTeam) {
    const Preparer preparer = {p, place, shared, static_cast<int>(threadIdx.x) - kTeam};
    Kept before = {}, now = {};
    float decays[kKeys];
#pragma unroll 1
    for (int chunk = -2; chunk < chunks; ++chunk) {
      const Half8 w_up = preparer.fetch(p.w_up, chunk + 2);
      // The finish reads what the completion overwrites; the same thread does both in the same places.
      if (chunk > 0) preparer.finish(chunk - 1, before);
      before = now;
      if (chunk >= -1 && chunk + 1 < chunks) preparer.complete(chunk + 1, decays, now);
      if (chunk + 2 < chunks) preparer.begin(chunk + 2, w_up, decays);
      __syncthreads();
    }
    preparer.finish(chunks - 1, before);
  } else {
    const int lane = threadIdx.x % kLanes, first = threadIdx.x / kLanes * kRows;
    State* const own = static_cast<State*>(p.state) +
                       ((static_cast<int64_t>(slot) * gridDim.x + head) * kHeadSize + first) * kHeadSize + lane * kKeys;
    Tile state;
    load_tile(state, own);
    __syncthreads();
    __syncthreads();
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int left = place.length - chunk * kChunk;
      advance_chunk(state, shared.chunk[chunk % 2], left < kChunk ? left : kChunk, lane, first);
      __syncthreads();
    }
    store_tile(state, own);
  }
}

template <class State>
cudaError_t sequence(const Wkv& p, cudaStream_t stream) {
  const dim3 grid(p.width / kHeadSize, p.rows);
  sequence_kernel<State><<<grid, 2 * kTeam, 0, stream>>>(p);
  return ok();
}

}  // namespace

cudaError_t wkv_sequence(const Wkv& p, cudaStream_t stream) {
  return p.state_is_float ? sequence<float>(p, stream) : sequence<half>(p, stream);
}

}  // namespace albatross
