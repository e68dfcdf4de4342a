// The time mix between its products for rows of one token: bound by reading and writing the state once.
//
// A block has one head of one row. A thread holds four 16-byte pieces of the state, all asked for before the first is
// used; while they are under way three warps turn the token's vectors into what the recurrence takes, in shared memory.
// With y taken from the old state,
//   y = S (w r) - (S kk) (b . r) + v (k . r),
// both products with the state are summed over the lanes together, and the new state is made from registers:
//   S = S w - (S kk) b^T + v k^T.
#include "wkv.cuh"

namespace albatross {
namespace {

constexpr int kPieces = 4;
constexpr int kRowStep = kHeadSize / kPieces;

template <class State>
struct Shape {
  static constexpr int keys = Packed<State>::keys;
  static constexpr int fours = keys / 4;
  static constexpr int lanes = kHeadSize / keys;        // across a row of the state
  static constexpr int threads = kRowStep * lanes;
  static constexpr int blocks = 1024 / threads;         // per multiprocessor: 64 KB of state under way

  // Where a key's float is: the fours of all lanes lie side by side, so that no two lanes read the same bank.
  __device__ static int place(int key) { return (key % keys) / 4 * (kHeadSize / fours) + key / keys * 4 + key % 4; }
};

// One head's vectors; those over keys in the order of Shape::place.
struct Vectors {
  float decayed_r[kHeadSize];
  float kk[kHeadSize];
  float decay[kHeadSize];
  float b[kHeadSize];
  float k[kHeadSize];
  float v[kHeadSize];
  float y[kHeadSize];
  half2 ends[3][kWarp];  // gate, weight and bias of the norm, for the end
  float b_r, k_r, bonus;
};

// What one lane needs for its two channels; each of three warps has another use for the places.
struct Inputs {
  half2 at[7];
  __device__ void load(int i, const half* p) { at[i] = __ldg(reinterpret_cast<const half2*>(p)); }
  __device__ float2 operator[](int i) const { return __half22float2(at[i]); }
};

enum Role : int { kKeys = 0, kValues = 1, kEnds = 2 };

__device__ __forceinline__ Inputs ask(const Wkv& p, int role, int64_t token, int channel) {
  Inputs in = {};
  if (role == kKeys) {
    in.load(0, p.k + token);
    in.load(1, p.a_up + token);
    in.load(2, p.r + token);
    in.load(3, p.a0 + channel);
    in.load(4, p.k_k + channel);
    in.load(5, p.k_a + channel);
    in.load(6, p.r_k + channel);
  } else if (role == kValues) {
    in.load(0, p.v + token);
    in.load(1, p.w_up + token);
    in.load(2, p.r + token);
    in.load(3, p.w0 + channel);
    if (p.v_up != nullptr) {
      in.load(4, p.v_up + token);
      in.load(5, p.v_first + token);
      in.load(6, p.v0 + channel);
    }
  } else if (role == kEnds) {
    in.load(0, p.g + token);
    in.load(1, p.ln_weight + channel);
    in.load(2, p.ln_bias + channel);
  }
  return in;
}

__device__ __forceinline__ void make_keys(const Inputs& in, Vectors& out, int place) {
  const float2 k = in[0], a_up = in[1], r = in[2], a0 = in[3], k_k = in[4], k_a = in[5], r_k = in[6];
  const float2 a = make_float2(sigmoid(a0.x + a_up.x), sigmoid(a0.y + a_up.y));
  const float2 direction = make_float2(k.x * k_k.x, k.y * k_k.y);
  const float2 key = make_float2(rated_key(k.x, a.x, k_a.x), rated_key(k.y, a.y, k_a.y));
  const float squares = warp_sum(direction.x * direction.x + direction.y * direction.y);
  const float b_r = warp_sum(direction.x * a.x * r.x + direction.y * a.y * r.y);
  const float k_r = warp_sum(key.x * r.x + key.y * r.y);
  const float bonus = warp_sum(key.x * r.x * r_k.x + key.y * r.y * r_k.y);
  const float scale = inverse_norm(squares);
  const float2 kk = make_float2(direction.x * scale, direction.y * scale);
  *reinterpret_cast<float2*>(out.kk + place) = kk;
  *reinterpret_cast<float2*>(out.b + place) = make_float2(kk.x * a.x, kk.y * a.y);
  *reinterpret_cast<float2*>(out.k + place) = key;
  if (threadIdx.x % kWarp == 0) {
    out.b_r = b_r * scale;
    out.k_r = k_r;
    out.bonus = bonus;
  }
}

__device__ __forceinline__ void make_values(const Wkv& p, const Inputs& in, int64_t token, Vectors& out, int place) {
  float2 v = in[0];
  const float2 w_up = in[1], r = in[2], w0 = in[3];
  if (p.v_up != nullptr) {
    const float2 v_up = in[4], first = in[5], v0 = in[6];
    v = make_float2(lerp(v.x, first.x, sigmoid(v0.x + v_up.x)), lerp(v.y, first.y, sigmoid(v0.y + v_up.y)));
  } else {
    *reinterpret_cast<half2*>(p.v_first + token) = in.at[0];
  }
  const float2 w = make_float2(__expf(kDecayScale * sigmoid(w0.x + w_up.x)), __expf(kDecayScale * sigmoid(w0.y + w_up.y)));
  *reinterpret_cast<float2*>(out.decay + place) = w;
  *reinterpret_cast<float2*>(out.decayed_r + place) = make_float2(w.x * r.x, w.y * r.y);
  *reinterpret_cast<float2*>(out.v + 2 * (threadIdx.x % kWarp)) = v;
}

// GroupNorm of y, bonus and gate, by one warp.
__device__ __forceinline__ void finish(const Wkv& p, int64_t token, const Vectors& from) {
  const int lane = threadIdx.x % kWarp, channel = 2 * lane;
  const float2 g = __half22float2(from.ends[0][lane]);
  const float2 weight = __half22float2(from.ends[1][lane]), bias = __half22float2(from.ends[2][lane]);
  float2 y = *reinterpret_cast<const float2*>(from.y + channel);
  const float2 v = *reinterpret_cast<const float2*>(from.v + channel);
  const float mean = warp_sum(y.x + y.y) * (1.0f / kHeadSize);
  y = make_float2(y.x - mean, y.y - mean);
  const float scale = rsqrtf(warp_sum(y.x * y.x + y.y * y.y) * (1.0f / kHeadSize) + kGroupNormEps);
  const float first = (fmaf(y.x * scale, weight.x, bias.x) + from.bonus * v.x) * g.x;
  const float second = (fmaf(y.y * scale, weight.y, bias.y) + from.bonus * v.y) * g.y;
  *reinterpret_cast<half2*>(p.out + token) = __floats2half2_rn(first, second);
}

// Sums eight values over the `lanes` lanes of a row: each exchange halves what a lane still has. Lane i ends with value
// 4 * bit 0 + 2 * bit 1 + bit 2 of i.
template <int lanes>
__device__ __forceinline__ float spread_sum(float (&value)[2 * kPieces]) {
  const int lane = threadIdx.x;
  float four[4], two[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float keep = lane & 1 ? value[i + 4] : value[i], give = lane & 1 ? value[i] : value[i + 4];
    four[i] = keep + __shfl_xor_sync(kAllLanes, give, 1);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float keep = lane & 2 ? four[i + 2] : four[i], give = lane & 2 ? four[i] : four[i + 2];
    two[i] = keep + __shfl_xor_sync(kAllLanes, give, 2);
  }
  const float keep = lane & 4 ? two[1] : two[0], give = lane & 4 ? two[0] : two[1];
  float sum = keep + __shfl_xor_sync(kAllLanes, give, 4);
  if (lanes == 16) sum += __shfl_xor_sync(kAllLanes, sum, 8);
  return sum;
}

// One step of the recurrence: y to shared memory, the new state to `piece`. Piece i is of row i * kRowStep + own row.
template <class State>
__device__ __forceinline__ void advance(uint4 (&piece)[kPieces], Vectors& vectors) {
  using S = Shape<State>;
  const int lane = threadIdx.x % S::lanes, own = threadIdx.x / S::lanes;
  float product[2 * kPieces] = {};  // S (w r) and S kk of each piece's row
#pragma unroll
  for (int four = 0; four < S::fours; ++four) {
    const int at = four * (kHeadSize / S::fours) + lane * 4;
    const float4 decayed_r = *reinterpret_cast<const float4*>(vectors.decayed_r + at);
    const float4 kk = *reinterpret_cast<const float4*>(vectors.kk + at);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float4 old = Packed<State>::get(piece[i], four);
      product[2 * i] = dot4(old, decayed_r, product[2 * i]);
      product[2 * i + 1] = dot4(old, kk, product[2 * i + 1]);
    }
  }
  const float sum = spread_sum<S::lanes>(product);
  const float removed_here = __shfl_xor_sync(kAllLanes, sum, 4);
  const int summed_row = ((lane & 1) * 2 + (lane >> 1 & 1)) * kRowStep + own;
  if (lane < 4) vectors.y[summed_row] = fmaf(vectors.v[summed_row], vectors.k_r, fmaf(-removed_here, vectors.b_r, sum));
  float removed[kPieces], v[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    removed[i] = __shfl_sync(kAllLanes, sum, 4 + i / 2 + 2 * (i % 2), S::lanes);
    v[i] = vectors.v[i * kRowStep + own];
  }
#pragma unroll
  for (int four = 0; four < S::fours; ++four) {
    const int at = four * (kHeadSize / S::fours) + lane * 4;
    const float4 w = *reinterpret_cast<const float4*>(vectors.decay + at);
    const float4 b = *reinterpret_cast<const float4*>(vectors.b + at);
    const float4 k = *reinterpret_cast<const float4*>(vectors.k + at);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      float4 x = Packed<State>::get(piece[i], four);
      x.x = fmaf(v[i], k.x, fmaf(-removed[i], b.x, x.x * w.x));
      x.y = fmaf(v[i], k.y, fmaf(-removed[i], b.y, x.y * w.y));
      x.z = fmaf(v[i], k.z, fmaf(-removed[i], b.z, x.z * w.z));
      x.w = fmaf(v[i], k.w, fmaf(-removed[i], b.w, x.w * w.w));
      Packed<State>::set(piece[i], four, x);
    }
  }
}

// Heads of a row are neighbours in the grid as they are in memory. Rows of several tokens are left to wkv_sequence.
template <class State>
__global__ void __launch_bounds__(Shape<State>::threads, Shape<State>::blocks) step_kernel(Wkv p) {
  using S = Shape<State>;
  __shared__ alignas(16) Vectors vectors;
  const int head = blockIdx.x, row = blockIdx.y, role = threadIdx.x / kWarp, channel = 2 * (threadIdx.x % kWarp);
  const unsigned slot = p.slots[row];  // unsigned: extending a sign would wait for it before the vectors are asked for
  int position = row;
  if (p.starts != nullptr) {
    position = p.starts[row];
    if (p.starts[row + 1] - position != 1) return;
  }
  const int64_t token = static_cast<int64_t>(position) * p.width + head * kHeadSize + channel;
  const Inputs in = ask(p, role, token, head * kHeadSize + channel);
  if (slot == static_cast<unsigned>(p.scratch)) return;

  // The state is touched once in a step of the model: let it go first when the cache needs room.
  uint4* state = static_cast<uint4*>(p.state) + (static_cast<uint64_t>(slot) * gridDim.x + head) * (kHeadSize * S::lanes) + threadIdx.x;
  uint4 piece[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) piece[i] = __ldcs(state + i * S::threads);
  if (role == kKeys) make_keys(in, vectors, S::place(channel));
  if (role == kValues) make_values(p, in, token, vectors, S::place(channel));
  if (role == kEnds) {
    for (int i = 0; i < 3; ++i) vectors.ends[i][channel / 2] = in.at[i];
  }
  __syncthreads();
  advance<State>(piece, vectors);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) __stcs(state + i * S::threads, piece[i]);
  __syncthreads();
  if (role == kEnds) finish(p, token, vectors);
}

template <class State>
cudaError_t step(const Wkv& p, cudaStream_t stream) {
  const dim3 grid(p.width / kHeadSize, p.rows);
  step_kernel<State><<<grid, Shape<State>::threads, 0, stream>>>(p);
  return ok();
}

}  // namespace

cudaError_t wkv(const Wkv& p, cudaStream_t stream) {
  if (p.width % kHeadSize != 0 || p.rows > 65535) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  const cudaError_t error = p.state_is_float ? step<float>(p, stream) : step<half>(p, stream);
  // Not by counting: with padding there may be as many rows as tokens and still longer ones among them.
  if (error != cudaSuccess || p.starts == nullptr) return error;
  return wkv_sequence(p, stream);
}

}  // namespace albatross
