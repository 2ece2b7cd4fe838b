// nsa_host_launch runs one launch of a kernel that is linked to this unit: see cuda_on_host.h.
#include "cuda_on_host.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <vector>

thread_local Index3 threadIdx, blockIdx, blockDim, gridDim;
namespace nsa {
thread_local __align__(1024) float4 nsa_dynamic_shared[2 << 20 >> 4];
// The names that kernels have for it.
extern thread_local float sums[] __attribute__((alias("_ZN3nsa18nsa_dynamic_sharedE")));
extern thread_local double turns[] __attribute__((alias("_ZN3nsa18nsa_dynamic_sharedE")));
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

// By value, on the stack: where any struct of more than two words lies.
template <int n> struct alignas(64) Argument { uint64_t words[n]; };
using Most = Argument<512>;
using Usual = Argument<64>;  // every thread copies its own

using Operation = void (*)(void* const* lanes);
struct Barrier {
  int alive = 0, here = 0;
  long round = 0;  // goes on from one block to the next
  Operation then = nullptr;  // of those who are here
  unsigned votes = 0, voted = 0;  // of those who are here; of all, the last time
  uint64_t given[2][32];  // by the lanes of a warp, in even and odd rounds
};
// What has touched a word of shared memory last: before which barrier, of whatever threads, and which warps.
struct Touched { long written = -1, read = -1; int writer; unsigned readers; };
struct Copy { uint32_t to; int size; const void* from; int bytes, group; };
constexpr int kStack = 64 << 10;
struct Fiber {
  void* at = nullptr;  // the top of its stack, where it has been left
  Index3 thread;  // in its block
  int lane, warp, block;  // in its warp; of the cluster
  bool done = false;
  const Barrier* waits = nullptr;  // at which barrier this thread waits, and since which round
  long round;
  bool (*over)(const void*) = nullptr;  // if not null, the thread waits until over(what)
  const void* what;
  std::vector<Copy> copies;  // under way
  int group = 0;  // of the next copy
  int arrived = 0, waited = 0;  // at barriers of the cluster
  bool paused = false;  // until the other blocks of the cluster have had their turn
  long cluster_round;  // of that at which it has arrived
  void* operand;
  std::unique_ptr<char[]> stack{new char[kStack]};  // not cleared
};

// What a thread of the host keeps from one launch to the next.
struct Worker {
  std::vector<Fiber> fibers;
  std::vector<Barrier> warps;
  std::vector<Touched> touched;
  std::vector<Barrier> blocks;  // of a cluster, or one
  Barrier cluster[2];  // its threads arrive at them in turn
  int threads;  // of a block
  unsigned first;  // of the blocks, along x
  Fiber* current;
  void* scheduler;
  void* kernel;
  Most argument;
  bool usual;  // argument fits in a Usual
  char* shared;  // their dynamic shared memory
  int shared_bytes, apart;  // of a block; from one block to the next
  long steps = 0;  // barriers that threads have passed, and threads that have ended
  long phases = 0;  // of barriers in shared memory that have ended
  bool pause_at_arrivals = false;  // at barriers of the cluster

  char* shared_of_block() { return shared + current->block * apart; }
  Touched& word(uint32_t i) { return touched[current->block * (shared_bytes / 4) + i]; }
  Barrier& block() { return blocks[current->block]; }
  long round() { return block().round + phases; }
  Barrier& warp() { return warps[current->warp]; }
};
thread_local Worker* me;
constexpr int kBehind = 4096;  // bytes behind the shared memory that stay as they are

void yield() { host_switch(&me->current->at, me->scheduler); }

void complete(Barrier& b) { b.here = 0, b.round++, b.voted = b.votes, b.votes = 0; }

void wait(Barrier& b, Operation then = nullptr) {
  const long round = b.round;
  if (b.here > 0 && b.then != then) host_fail("the lanes of a warp are at different operations");
  b.then = then;
  if (++b.here == b.alive) {
    if (then) {
      void* lanes[32];
      for (int i = 0; i < 32; i++) lanes[i] = me->fibers[me->current->warp * 32 + i].operand;
      then(lanes);
    }
    complete(b);
  }
  if (b.round == round) {
    Fiber& f = *me->current;
    f.waits = &b, f.round = round;
    yield();  // until the round is over
    f.waits = nullptr;
  }
  me->steps++;
}

void leave(Barrier& b) {
  if (b.here > 0 && b.then) host_fail("a thread ends without its warp");
  if (--b.alive == b.here && b.alive > 0) complete(b);
}

// A fiber runs its thread of one block after the other.
void body() {
  for (;;) {
    if (me->usual) reinterpret_cast<void (*)(Usual)>(me->kernel)(reinterpret_cast<Usual&>(me->argument));
    else reinterpret_cast<void (*)(Most)>(me->kernel)(me->argument);
    Fiber& f = *me->current;
    if (!f.copies.empty()) host_fail("a thread ends before its copies");
    f.done = true;
    if (f.arrived != f.waited) host_fail("a thread ends between the halves of a barrier");
    leave(me->block());
    leave(me->warp());
    yield();
  }
}

// run_blocks runs a block, or those of a cluster, of which all warps are whole.
void run_blocks(int blocks, bool backwards) {
  Worker& w = *me;
  const int threads = blocks * w.threads;
  int left = threads;
  w.pause_at_arrivals = backwards;
  long round = 0;  // of no block before, since words of shared memory belong to other ones from launch to launch
  for (const Barrier& b : w.blocks) round = max(round, b.round + 1);
  for (int i = 0; i < blocks; i++) w.blocks[i].alive = w.threads, w.blocks[i].round = round;
  for (Barrier& b : w.cluster) b.alive = threads, b.here = 0;
  for (int i = 0; i < threads; i++) {
    w.warps[i / 32].alive++;
    Fiber& f = w.fibers[i];
    f.done = f.paused = false, f.arrived = f.waited = 0;
    if (f.at) continue;
    char* end = f.stack.get() + kStack - i % 32 * 576;  // stacks of a warp begin in different sets of the L1 cache
    void** top = reinterpret_cast<void**>(uintptr_t(end) & -16) - 1;  // where body would return to
    *top = nullptr, *--top = reinterpret_cast<void*>(body);
    f.at = top - 6;  // six registers
  }
  // A block of a cluster goes on until all of its threads wait for other blocks, a warp until all of its threads wait for other ones.
  const auto run_warp = [&](int first) {
    for (long before = -1; before != w.steps;) {
      before = w.steps;
      for (int i = first; i < min(threads, first + 32); i++) {
        Fiber& f = w.fibers[backwards ? threads - 1 - i : i];
        if (f.done || f.paused || (f.waits && f.waits->round == f.round) || (f.over && !f.over(f.what))) continue;
        w.current = &f, threadIdx = f.thread, blockIdx.x = w.first + f.block;
        host_switch(&w.scheduler, f.at);
        if (f.done) left--, w.steps++;
      }
    }
  };
  for (long steps = -1, idle = 0; left > 0; idle = steps == w.steps ? idle + 1 : 0) {
    if (idle == 3) host_fail("threads wait for each other");
    steps = w.steps;
    for (int block = 0; block < threads; block += w.threads) {
      for (int i = block; i < block + w.threads; i++) w.fibers[backwards ? threads - 1 - i : i].paused = false;
      for (long before = -1; before != w.steps;) {
        before = w.steps;
        for (int first = block; first < block + w.threads; first += 32) run_warp(first);
      }
    }
  }
}

}  // namespace

bool host_sync_block(bool vote) {
  Barrier& b = me->block();
  b.votes |= vote;
  wait(b);
  return b.voted;
}
void host_sync_warp() { wait(me->warp()); }
void host_wait(bool (*over)(const void*), const void* what) {
  if (!over(what)) {
    Fiber& f = *me->current;
    f.over = over, f.what = what;
    yield();
    f.over = nullptr;
  }
  me->steps++;
}
void host_cluster_arrive() {
  Fiber& f = *me->current;
  if (f.arrived != f.waited) host_fail("a thread arrives twice");
  Barrier& b = me->cluster[f.arrived++ % 2];
  f.cluster_round = b.round;
  if (++b.here == b.alive) complete(b);
  if (!me->pause_at_arrivals) return;
  f.paused = true, me->steps++;
  yield();
}
void host_cluster_wait() {
  Fiber& f = *me->current;
  if (f.arrived != f.waited + 1) host_fail("a thread waits before it arrives");
  const std::pair<Barrier*, long> over = {&me->cluster[f.waited++ % 2], f.cluster_round};
  host_wait([](const void* of) { auto [b, round] = *static_cast<const std::pair<Barrier*, long>*>(of); return b->round != round; }, &over);
}
std::ptrdiff_t host_apart() { return me->apart; }
void host_phase() { me->phases++; }
int host_lane() { return me->current->lane; }
uint64_t host_exchange(uint64_t mine, int lane) {
  uint64_t* given = me->warp().given[me->warp().round % 2];  // written to again after all lanes are at the next round
  given[host_lane()] = mine;
  host_sync_warp();
  return given[lane];
}
unsigned host_ballot(bool vote) {
  me->warp().votes |= unsigned(vote) << host_lane();
  host_sync_warp();
  return me->warp().voted;
}

void host_fail(const char* what) {
  fprintf(stderr, "block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
  abort();
}
void host_warp(void* mine, Operation all) {
  if (me->warp().alive < 32) host_fail("an operation of a whole warp without some of its lanes");
  me->current->operand = mine;
  wait(me->warp(), all);
}

uint32_t host_shared_address(const void* p) { return uint32_t(static_cast<const char*>(p) - me->shared_of_block()); }
char* host_shared_of_block() { return me->shared_of_block(); }
static char* shared_at(uint32_t at, int bytes) {
  if (at % bytes != 0) host_fail("an address in shared memory that is not aligned");
  if (int64_t(at) + bytes > me->shared_bytes) host_fail("an address behind the shared memory");
  return me->shared_of_block() + at;
}
const void* host_read(uint32_t at, int bytes) {
  const char* p = shared_at(at, bytes);
  const long round = me->round();
  const int warp = me->current->warp;
  for (uint32_t i = at / 4; i < (at + bytes) / 4; i++) {
    Touched& t = me->word(i);
    if (t.written == round && t.writer != warp) host_fail("a read of what another warp has just written");
    if (t.read != round) t.read = round, t.readers = 0;
    t.readers |= 1u << warp;
  }
  return p;
}
void* host_write(uint32_t at, int bytes) {
  char* p = shared_at(at, bytes);
  const long round = me->round();
  const int warp = me->current->warp;
  for (uint32_t i = at / 4; i < (at + bytes) / 4; i++) {
    Touched& t = me->word(i);
    if (t.written == round && t.writer != warp) host_fail("a write over what another warp has just written");
    if (t.read == round && t.readers != 1u << warp) host_fail("a write over what another warp has just read");
    t.written = round, t.writer = warp;
  }
  return p;
}
void host_copy(uint32_t to, int size, const void* from, int bytes) {
  if (bytes > 0 && uint64_t(from) % size != 0) host_fail("a copy from an address that is not aligned");
  memset(host_write(to, size), 0xff, size);
  me->current->copies.push_back({to, size, from, bytes, me->current->group});
}
void host_copy_commit() { me->current->group++; }
void host_copy_wait(int newest) {
  Fiber& f = *me->current;
  auto copy = f.copies.begin();
  for (; copy != f.copies.end() && copy->group < f.group - newest; copy++) {
    unsigned char* to = static_cast<unsigned char*>(host_write(copy->to, copy->size));
    for (int i = 0; i < copy->size; i++)
      if (to[i] != 0xff) host_fail("a write where a copy was under way");
    memset(to, 0, copy->size);
    memcpy(to, copy->from, copy->bytes);
  }
  f.copies.erase(f.copies.begin(), copy);
}

static std::atomic<bool> backwards{false};

// nsa_host_order makes the blocks of a cluster, the warps of a block and the threads of a warp run in descending order, between
// barriers of each, or in ascending order again. In descending order a block that arrives at a barrier of its cluster lets the other
// blocks run before it goes on; else it goes on until it waits. Kernels without races give the same bits.
extern "C" void nsa_host_order(int descending) { backwards = descending != 0; }

// nsa_host_launch runs blocks of a launch, one cluster of adjoining blocks after the other, whose numbers it takes from *next: several
// threads of the host share a launch if each calls it with the same counter.
extern "C" int nsa_host_launch(void* f, const Index3* grid, const Index3* block, int64_t cluster, int64_t shared, const void* params, int64_t size,
                               std::atomic<int64_t>* next) {
  const int64_t clusters = int64_t(grid->x) * grid->y * grid->z / cluster, threads = int64_t(block->x) * block->y * block->z * cluster;
  const int64_t apart = (shared + kBehind + 1023) / 1024 * 1024;
  if (cluster * apart > int64_t(sizeof nsa::nsa_dynamic_shared) || size > int64_t(sizeof(Most))) return 1;
  if (!me) me = new Worker;
  Worker& w = *me;
  w.kernel = f, w.usual = size <= int64_t(sizeof(Usual)), w.shared_bytes = int(shared), w.apart = int(apart), w.shared = reinterpret_cast<char*>(nsa::nsa_dynamic_shared);
  w.threads = int(threads / cluster);
  memcpy(&w.argument, params, size);
  if (int64_t(w.fibers.size()) < threads) w.fibers.resize(threads), w.warps.resize((threads + 31) / 32);
  if (int64_t(w.blocks.size()) < cluster) w.blocks.resize(cluster);
  if (int64_t(w.touched.size()) < cluster * (shared / 4)) w.touched.resize(cluster * (shared / 4));
  gridDim = *grid, blockDim = *block;
  for (int i = 0; i < threads; i++) {
    const unsigned thread = i % w.threads;
    Fiber& f = w.fibers[i];
    f.thread = {thread % block->x, thread / block->x, 0}, f.lane = i % 32, f.warp = i / 32, f.block = i / w.threads;
  }
  const bool order = backwards;
  for (int64_t i; (i = (*next)++) < clusters;) {
    const int64_t first = i * cluster;
    blockIdx = {unsigned(first % grid->x), unsigned(first / grid->x % grid->y), unsigned(first / grid->x / grid->y)}, w.first = blockIdx.x;
    memset(w.shared, 0xff, cluster * apart);  // NaN
    run_blocks(int(cluster), order);
    for (int64_t b = 0; b < cluster; b++) {
      const char* behind = w.shared + b * apart + shared;
      if (*behind != char(0xff) || memcmp(behind, behind + 1, apart - shared - 1) != 0) host_fail("a write behind the shared memory");
    }
  }
  return 0;
}
