// nsa_host_launch runs one launch of a kernel that is linked to this unit: see cuda_on_host.h.
#include "cuda_on_host.h"

#include <atomic>
#include <cstdio>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

thread_local Index3 threadIdx, blockIdx, blockDim, gridDim;
namespace nsa {
thread_local __align__(1024) float4 nsa_dynamic_shared[256 << 10 >> 4];
}

// host_switch saves what a function must keep on the stack, whose top goes to *from, and goes on from there on another stack.
extern "C" void host_switch(void** from, void* to);
asm(R"(
host_switch:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
)");

namespace {

struct Argument { uint64_t words[80]; };  // by value, on the stack: where any struct of more than two words lies
using Kernel = void (*)(Argument);

using Operation = void (*)(void* const* lanes);
struct Barrier {
  int alive = 0, here = 0, round = 0;
  Operation then = nullptr;  // of those who are here
  bool vote = false, voted = false;  // of those who are here; of all, the last time
};
// What has touched a word of shared memory last: before which barrier, and which warps.
struct Touched { int written = -1, writer, read = -1; unsigned readers; };
struct Copy { uint32_t to; int size; const void* from; int bytes; };
struct Copies { std::vector<Copy> open; std::deque<std::vector<Copy>> groups; };
struct Fiber {
  void* at = nullptr;  // the top of its stack, where it has been left
  bool done = false;
  const Barrier* waits = nullptr;  // at which barrier this thread waits, and since which round
  int round;
  Copies copies;
  void* operand;
  std::unique_ptr<char[]> stack;  // not cleared
};

constexpr int kStack = 64 << 10;
thread_local std::vector<Fiber> fibers;
thread_local std::vector<Barrier> warps;
thread_local std::vector<uint64_t> given;
thread_local Barrier block;
thread_local int current;
thread_local void* scheduler;
thread_local Kernel kernel;
thread_local Argument argument;
thread_local int shared_bytes;
thread_local std::vector<Touched> touched;
constexpr int kBehind = 4096;  // bytes behind the shared memory that stay as they are
thread_local long steps;       // barriers that threads have passed, and threads that have ended

void yield() { host_switch(&fibers[current].at, scheduler); }

void complete(Barrier& b) { b.here = 0, b.round++, b.voted = b.vote, b.vote = false; }

void wait(Barrier& b, Operation then = nullptr) {
  const int round = b.round;
  if (b.here > 0 && b.then != then) host_fail("the lanes of a warp are at different operations");
  b.then = then;
  if (++b.here == b.alive) {
    if (then) {
      void* lanes[32];
      for (int i = 0; i < 32; i++) lanes[i] = fibers[current / 32 * 32 + i].operand;
      then(lanes);
    }
    complete(b);
  }
  if (b.round == round) {
    fibers[current].waits = &b, fibers[current].round = round;
    yield();  // until the round is over
    fibers[current].waits = nullptr;
  }
  steps++;
}

void leave(Barrier& b) {
  if (b.here > 0 && b.then) host_fail("a thread ends without its warp");
  if (--b.alive == b.here && b.alive > 0) complete(b);
}

// A fiber runs its thread of one block after the other.
void body() {
  for (;;) {
    kernel(argument);
    Fiber& f = fibers[current];
    f.done = true;
    host_copy_commit();
    for (const auto& group : f.copies.groups)
      if (!group.empty()) host_fail("a thread ends before its copies");
    f.copies.groups.clear();
    leave(block);
    leave(warps[current / 32]);
    yield();
  }
}

void run_block(int threads, bool backwards) {
  block = {threads, 0, 0};
  warps.assign((threads + 31) / 32, {});
  for (int i = 0; i < threads; i++) {
    warps[i / 32].alive++;
    Fiber& f = fibers[i];
    f.done = false;
    if (f.at) continue;
    void** top = reinterpret_cast<void**>(uintptr_t(f.stack.get() + kStack) & -16) - 1;  // where body would return to
    *top = nullptr, *--top = reinterpret_cast<void*>(body);
    f.at = top - 6;  // six registers
  }
  // A warp goes on until all of its threads wait for other ones.
  for (int left = threads; left > 0;)
    for (int w = 0; w < int(warps.size()); w++)
      for (long before = -1; before != steps;) {
        before = steps;
        for (int i = 32 * w; i < min(threads, 32 * w + 32); i++) {
          current = backwards ? threads - 1 - i : i;
          Fiber& f = fibers[current];
          if (f.done || (f.waits && f.waits->round == f.round)) continue;
          threadIdx = {unsigned(current), 0, 0};
          host_switch(&scheduler, f.at);
          if (f.done) left--, steps++;
        }
      }
}

}  // namespace

bool host_sync_block(bool vote) {
  block.vote |= vote;
  wait(block);
  return block.voted;
}
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

void host_fail(const char* what) {
  fprintf(stderr, "block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
  abort();
}
void host_warp(void* mine, Operation all) {
  Barrier& b = warps[current / 32];
  if (b.alive < 32) host_fail("an operation of a whole warp without some of its lanes");
  fibers[current].operand = mine;
  wait(b, all);
}

uint32_t host_shared_address(const void* p) {
  return uint32_t(static_cast<const char*>(p) - reinterpret_cast<char*>(nsa::nsa_dynamic_shared));
}
static char* shared_at(uint32_t at, int bytes) {
  if (at % bytes != 0) host_fail("an address in shared memory that is not aligned");
  if (int64_t(at) + bytes > shared_bytes) host_fail("an address behind the shared memory");
  return reinterpret_cast<char*>(nsa::nsa_dynamic_shared) + at;
}
const void* host_read(uint32_t at, int bytes) {
  const char* p = shared_at(at, bytes);
  for (uint32_t i = at / 4; i < (at + bytes) / 4; i++) {
    Touched& t = touched[i];
    if (t.written == block.round && t.writer != current / 32) host_fail("a read of what another warp has just written");
    if (t.read != block.round) t.read = block.round, t.readers = 0;
    t.readers |= 1u << current / 32;
  }
  return p;
}
void* host_write(uint32_t at, int bytes) {
  char* p = shared_at(at, bytes);
  for (uint32_t i = at / 4; i < (at + bytes) / 4; i++) {
    Touched& t = touched[i];
    if (t.written == block.round && t.writer != current / 32) host_fail("a write over what another warp has just written");
    if (t.read == block.round && t.readers != 1u << current / 32) host_fail("a write over what another warp has just read");
    t.written = block.round, t.writer = current / 32;
  }
  return p;
}
void host_copy(uint32_t to, int size, const void* from, int bytes) {
  if (bytes > 0 && uint64_t(from) % size != 0) host_fail("a copy from an address that is not aligned");
  memset(host_write(to, size), 0xff, size);
  fibers[current].copies.open.push_back({to, size, from, bytes});
}
void host_copy_commit() {
  Copies& c = fibers[current].copies;
  c.groups.push_back(std::move(c.open));
  c.open.clear();
}
void host_copy_wait(int newest) {
  Copies& c = fibers[current].copies;
  for (; int(c.groups.size()) > newest; c.groups.pop_front()) {
    for (const Copy& x : c.groups.front()) {
      unsigned char* to = static_cast<unsigned char*>(host_write(x.to, x.size));
      for (int i = 0; i < x.size; i++)
        if (to[i] != 0xff) host_fail("a write where a copy was under way");
      memset(to, 0, x.size);
      memcpy(to, x.from, x.bytes);
    }
  }
}

static std::atomic<bool> backwards{false};

// nsa_host_order makes the warps of a block, and the threads of a warp, run in descending order, between barriers, or in
// ascending order again. Kernels without races give the same bits.
extern "C" void nsa_host_order(int descending) { backwards = descending != 0; }

extern "C" int nsa_host_launch(void* f, int64_t grid, int64_t threads, int64_t shared, const void* params, int64_t size) {
  if (shared > int64_t(sizeof nsa::nsa_dynamic_shared) - kBehind || size > int64_t(sizeof(Argument))) return 1;
  const bool order = backwards;
  std::atomic<int64_t> next{0};  // the blocks are shared out among the processors
  const auto work = [&] {
    kernel = Kernel(f), shared_bytes = int(shared);
    memcpy(&argument, params, size);
    fibers.resize(threads);
    given.assign((threads + 31) / 32 * 32, 0);
    for (Fiber& x : fibers) x.stack.reset(new char[kStack]);
    gridDim = {unsigned(grid), 1, 1}, blockDim = {unsigned(threads), 1, 1};
    for (int64_t i; (i = next++) < grid;) {
      blockIdx = {unsigned(i), 0, 0};
      char* memory = reinterpret_cast<char*>(nsa::nsa_dynamic_shared);
      memset(memory, 0xff, shared + kBehind);  // NaN
      touched.assign(shared / 4, {});
      run_block(int(threads), order);
      for (int64_t j = shared; j < shared + kBehind; j++)
        if (memory[j] != char(0xff)) host_fail("a write behind the shared memory");
    }
  };
  std::vector<std::thread> all;
  for (int64_t i = 0; i < std::min<int64_t>(grid, std::max(1u, std::thread::hardware_concurrency())); i++) all.emplace_back(work);
  for (std::thread& x : all) x.join();
  return 0;
}
