// The rows of a group that a block owns, in the kernels that own rows.
#pragma once

#include "attention_params.cuh"

namespace nsa {

// RowTile is the rows [first,end) of group g of batch row b that a block owns: `count` of the group's S*h rows, in the order of
// Sizes::row. Lower blockIdx get later rows, because those may see more keys.
struct RowTile {
  int b, g, first, end;
  __device__ RowTile(const Sizes& n, int count, int block = blockIdx.x) {
    const int all = n.queries * n.h, tiles = (all - 1) / count + 1;
    opaque(block);  // a second RowTile is computed again: the first one does not stay in registers
    const int group = block / tiles;
    b = group / n.groups, g = group % n.groups;
    const int begin = n.start(b) * n.h;
    first = begin + (tiles - 1 - block % tiles) * count;
    end = min(begin + all, first + count);
  }
  __device__ RowTile(int b, int g, int first, int end) : b(b), g(g), first(first), end(end) {}
  __device__ bool has(int r) const { return first + r < end; }
};

}  // namespace nsa
