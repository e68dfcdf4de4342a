// What the products share: copies to shared memory, the tensor cores' fragments, activations, results.
#pragma once

#include <atomic>

#include "common.cuh"

namespace albatross {

// --- Copies to shared memory that the thread does not wait for (sm_80; before that it does) -------------------------

__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// 16 bytes past L1; zeros when not `wanted`, and then nothing is read.
__device__ __forceinline__ void copy_async(unsigned to, const half* from, bool wanted) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
#else
  const uint4 bits = wanted ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w) : "memory");
#endif
}

// Closes the group of the copies made since the last one.
__device__ __forceinline__ void copy_commit() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all but the last `pending` groups of this thread have arrived.
template <int pending>
__device__ __forceinline__ void copy_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

// --- Tensor cores ----------------------------------------------------------------------------------------------------

// Four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8 and receives of each the halfs 2t, 2t + 1 of row
// g, where g = lane / 4 and t = lane % 4.
__device__ __forceinline__ void load_matrices(unsigned (&out)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// sum[16 x 8] += a[16 x 16] . b[16 x 8] over a warp; two halfs a register. a: (g, k 2t), (g + 8, k 2t), (g, k 2t + 8),
// (g + 8, k 2t + 8); b: (k 2t, column g), (k 2t + 8, column g); sum: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ __forceinline__ void multiply16(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// --- Results and launches --------------------------------------------------------------------------------------------

// NaN stays NaN in all of them.
__device__ __forceinline__ float activate(float x, int activation) {
  if (activation == kTanh) return tanhf(x);
  if (activation == kSigmoid) return sigmoid(x);
  if (activation == kReluSquare) return x < 0.0f ? 0.0f : x * x;
  return x;
}

// Element `index` of an output whose type is known at run time only.
__device__ __forceinline__ float load_result(const void* output, int64_t index, bool is_float) {
  return is_float ? static_cast<const float*>(output)[index] : __half2float(static_cast<const half*>(output)[index]);
}

__device__ __forceinline__ void store_result(void* output, int64_t index, float value, bool is_float) {
  if (is_float) {
    static_cast<float*>(output)[index] = value;
  } else {
    static_cast<half*>(output)[index] = __float2half_rn(value);
  }
}

// The most shared memory that a block may ask for on the current device.
inline cudaError_t shared_limit(int& bytes) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error == cudaSuccess ? cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) : error;
}

constexpr int kMaxDevices = 64;
using KnownDevices = std::atomic<bool>[kMaxDevices];

// Lets `kernel` have up to `bytes` of dynamic shared memory on the current device, and all there is for several blocks on a
// multiprocessor. `known` belongs to this kernel alone, and `bytes` is the same in every call: two threads that race here
// set the same value twice, which does no harm.
template <typename Kernel>
inline cudaError_t allow_shared(Kernel* kernel, int bytes, KnownDevices& known) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (device < kMaxDevices && known[device].load(std::memory_order_acquire)) return cudaSuccess;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (error == cudaSuccess && device < kMaxDevices) known[device].store(true, std::memory_order_release);
  return error;
}

}  // namespace albatross
