// nsa_host_launch runs one launch of a kernel of this library: see cuda_on_host.h.
#include "../../attention_dkv.cu"
#include "../../attention_dq.cu"
#include "../../attention_forward.cu"
#include "../../attention_index.cu"
#include "../../matmul_tensor.cu"
#include "../../select.cu"

#include <atomic>
#include <memory>
#include <setjmp.h>
#include <thread>
#include <ucontext.h>
#include <vector>

thread_local Index3 threadIdx, blockIdx, blockDim, gridDim;
namespace nsa {
thread_local float4 nsa_dynamic_shared[256 << 10 >> 4];
}

namespace {

struct Argument { uint64_t words[40]; };  // by value, on the stack: where any struct of more than two words lies
using Kernel = void (*)(Argument);

struct Barrier { int alive = 0, here = 0, round = 0; };
struct Fiber {
  ucontext_t start;
  jmp_buf at;
  bool begun = false, done = false;
  std::unique_ptr<char[]> stack;  // not cleared
};

constexpr int kStack = 256 << 10;
thread_local std::vector<Fiber> fibers;
thread_local std::vector<Barrier> warps;
thread_local std::vector<uint64_t> given;
thread_local Barrier block;
thread_local int current;
thread_local ucontext_t scheduler_context;
thread_local jmp_buf scheduler;
thread_local Kernel kernel;
thread_local Argument argument;

void yield() {
  if (!_setjmp(fibers[current].at)) _longjmp(scheduler, 1);
}

void wait(Barrier& b) {
  const int round = b.round;
  if (++b.here == b.alive) {
    b.here = 0, b.round++;
    return;
  }
  while (b.round == round) yield();
}

void leave(Barrier& b) {
  if (--b.alive == b.here && b.alive > 0) b.here = 0, b.round++;
}

void body() {
  kernel(argument);
  fibers[current].done = true;
  leave(block);
  leave(warps[current / 32]);
  _longjmp(scheduler, 1);
}

void run_block(int threads, bool backwards) {
  block = {threads, 0, 0};
  warps.assign((threads + 31) / 32, {});
  for (int i = 0; i < threads; i++) {
    warps[i / 32].alive++;
    Fiber& f = fibers[i];
    f.begun = f.done = false;
    getcontext(&f.start);
    f.start.uc_stack.ss_sp = f.stack.get(), f.start.uc_stack.ss_size = kStack, f.start.uc_link = nullptr;
    makecontext(&f.start, body, 0);
  }
  for (volatile int left = threads; left > 0;)
    for (volatile int i = 0; i < threads; i = i + 1) {
      current = backwards ? threads - 1 - i : i;
      Fiber& f = fibers[current];
      if (f.done) continue;
      threadIdx = {unsigned(current), 0, 0};
      if (!_setjmp(scheduler)) {
        if (f.begun) _longjmp(f.at, 1);
        f.begun = true;
        setcontext(&f.start);
      }
      if (fibers[current].done) left = left - 1;
    }
}

}  // namespace

void host_sync_block() { wait(block); }
void host_sync_warp() { wait(warps[current / 32]); }
int host_lane() { return current % 32; }
uint64_t host_exchange(uint64_t mine, int lane) {
  given[current] = mine;
  host_sync_warp();
  const uint64_t theirs = given[current / 32 * 32 + lane];
  host_sync_warp();
  return theirs;
}
unsigned host_ballot(bool vote) {
  given[current] = vote;
  host_sync_warp();
  unsigned votes = 0;
  for (int i = 0; i < 32; i++) votes |= unsigned(given[current / 32 * 32 + i]) << i;
  host_sync_warp();
  return votes;
}

static std::atomic<bool> backwards{false};

// nsa_host_order makes the threads of a block run in descending order, between barriers, or in ascending order again. Kernels
// without races give the same bits.
extern "C" void nsa_host_order(int descending) { backwards = descending != 0; }

extern "C" int nsa_host_launch(void* f, int64_t grid, int64_t threads, int64_t shared, const void* params, int64_t size) {
  if (shared > int64_t(sizeof nsa::nsa_dynamic_shared) || size > int64_t(sizeof(Argument))) return 1;
  const bool order = backwards;
  std::atomic<int64_t> next{0};  // the blocks are shared out among the processors
  const auto work = [&] {
    kernel = Kernel(f);
    memcpy(&argument, params, size);
    fibers.resize(threads);
    given.assign((threads + 31) / 32 * 32, 0);
    for (Fiber& x : fibers) x.stack.reset(new char[kStack]);
    gridDim = {unsigned(grid), 1, 1}, blockDim = {unsigned(threads), 1, 1};
    for (int64_t i; (i = next++) < grid;) {
      blockIdx = {unsigned(i), 0, 0};
      memset(reinterpret_cast<char*>(nsa::nsa_dynamic_shared), 0xff, shared);  // NaN
      run_block(int(threads), order);
    }
  };
  std::vector<std::thread> all;
  for (int64_t i = 0; i < std::min<int64_t>(grid, std::max(1u, std::thread::hardware_concurrency())); i++) all.emplace_back(work);
  for (std::thread& x : all) x.join();
  return 0;
}
