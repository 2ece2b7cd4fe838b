// document_table: cu_seqlens int32 [K+1], the boundaries of the documents in B rows of S tokens -> table [B,S], a Document for each token,
// written with =.
//
// spec.DocumentTable checks boundaries that come from the host. Unchecked boundaries also give a table in which no number leads outside a
// row.
//
// Grid x is ceil(S/kOwned), y goes over the rows. A block owns kOwned entries of a row. It goes through all documents of the row,
// kTableThreads at a time, and adds up their compressed keys to find where those of each document begin.
#include "documents.cuh"

namespace nsa {

constexpr int kTableThreads = 256, kOwned = 1024;

struct DocumentTableParams {
  const int32_t* cu;  // [K+1]
  Document* table;
  int64_t documents;  // K
  int32_t batch, seq, length, stride;  // B, S, l, d
};

// The index of the first of n ascending numbers that is at least x; n if there is none.
__device__ __forceinline__ int lower_bound(const int* list, int n, int x) {
  int lo = 0;
  while (lo < n) {
    const int mid = (lo + n) / 2;
    if (list[mid] < x) lo = mid + 1;
    else n = mid;
  }
  return lo;
}

// Running reduction over the threads of a block: sets list[i] to the `join` of the numbers x of threads 0 to i.
template <class Join> __device__ __forceinline__ void running(int* list, int x, Join join) {
  __syncthreads();  // all threads have read the list
  list[threadIdx.x] = x;
  __syncthreads();
  for (int step = 1; step < kTableThreads; step *= 2) {
    if (int(threadIdx.x) >= step) x = join(x, list[threadIdx.x - step]);
    __syncthreads();
    list[threadIdx.x] = x;
    __syncthreads();
  }
}

}  // namespace nsa

extern "C" __global__ void __launch_bounds__(nsa::kTableThreads) nsa_document_table_i32(const __grid_constant__ nsa::DocumentTableParams p) {
  using namespace nsa;
  __shared__ int ends[kTableThreads], keys[kTableThreads];  // of kTableThreads documents: their ends; the compressed keys up to there
  const int thread = threadIdx.x, n = int(p.documents), from = blockIdx.x * kOwned, to = min(p.seq, from + kOwned);
  for (int b = blockIdx.y; b < p.batch; b += gridDim.y) {
    const int start = b * p.seq;
    Document* row = p.table + start;
    int begin = 0, before = 0;  // the end of the documents so far; their compressed keys
    for (int i = lower_bound(p.cu, n + 1, start); begin < p.seq; i += kTableThreads) {
      const int end = i + thread < n ? min(max(p.cu[i + thread + 1], start), start + p.seq) - start : p.seq;
      running(ends, max(begin, end), [](int x, int y) { return max(x, y); });
      const int first = thread ? ends[thread - 1] : begin;
      running(keys, (thread ? 0 : before) + compressed_keys(ends[thread] - first, p.length, p.stride), [](int x, int y) { return x + y; });
      const int stop = ends[kTableThreads - 1], last = keys[kTableThreads - 1];
      for (int t = max(from, begin) + thread; t < min(to, stop); t += kTableThreads) {
        const int k = lower_bound(ends, kTableThreads, t + 1);
        row[t].first = k ? ends[k - 1] : begin, row[t].end = ends[k], row[t].keys = k ? keys[k - 1] : before;
      }
      for (int j = max(from, before) + thread; j < min(to, last); j += kTableThreads) {
        const int k = lower_bound(keys, kTableThreads, j + 1);
        row[j].block = k ? ends[k - 1] + (j - keys[k - 1]) * p.stride : begin + (j - before) * p.stride;
      }
      begin = stop, before = last;
    }
    for (int j = max(from, before) + thread; j < to; j += kTableThreads) row[j].block = -1;
    __syncthreads();  // all threads have read the lists
  }
}
