package decode

import (
	"cmp"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// KVCache holds the sizes of the cache of one attention layer, for sequences that grow by one token at a time. Every
// sequence has a slot. Its tokens lie in pages of a pool that all slots share, so a sequence grows and ends without a
// copy. Ops have a page table as an input: a row for each sequence, with the number of its tokens and its pages.
//
// In an NSA layer a page holds the keys and values of the selected branch, and the compressed keys and values of the
// blocks that begin in the page. Besides, each slot has two rings: the w newest keys and values of the window branch,
// and the l newest keys and values before compression. In dense attention, whose Params are zero, a page holds keys and
// values and there are no rings.
//
// A page into which tokens go belongs to one slot. Whether two rows of a page table name the same page is not checked.
//
// A cache is one tensor [Elements()], zero at first. Layout returns where its parts lie.
type KVCache struct {
	spec.Params          // of the NSA layer; zero: dense attention
	Without     Branches // branches that the NSA layer leaves out

	KVHeads  int // Hkv
	KeyDim   int // D
	ValueDim int // Dv
	Slots    int // B: sequences
	Pages    int // pages of all sequences together
	PageLen  int // tokens of a page, a multiple of l'

	// Half is BFloat16 or Float16 if a device stores the cache in that type, two numbers in each element of the tensor.
	// The zero value means the type of the tensor.
	Half tensor.Dtype
}

// Dense reports whether the cache is for dense attention.
func (c KVCache) Dense() bool { return c.Params == spec.Params{} }

// Has reports whether the layer has branch b. Dense attention has no branches.
func (c KVCache) Has(b Branch) bool { return !c.Dense() && !c.Without.Has(b) }

// Stores reports whether the cache holds keys and values for branch b: it does for each branch that the layer has, and
// for the compressed branch also if the layer has the selected one, since the block selection needs the compressed
// keys.
func (c KVCache) Stores(b Branch) bool { return c.Has(b) || b == Compressed && c.Has(Selected) }

// hasInputs reports whether ops have inputs for keys and values of branch b. Those of dense attention count as the
// window's.
func (c KVCache) hasInputs(b Branch) bool { return c.Stores(b) || c.Dense() && b == Window }

// StoresTokens reports whether the cache holds all tokens of a sequence, in pages.
func (c KVCache) StoresTokens() bool { return c.Dense() || c.Has(Selected) }

// branches returns the number of branches of the layer.
func (c KVCache) branches() (n int) {
	for b := range Branch(NumBranches) {
		if c.Has(b) {
			n++
		}
	}
	return n
}

// inputNames returns the names of the inputs that hold the keys and values of new tokens of branch b.
func (c KVCache) inputNames(b Branch) (k, v string) {
	if c.Dense() {
		return "k", "v"
	}
	return BranchNames()[b] + " k", BranchNames()[b] + " v"
}

// maxCache bounds the elements of a cache, so that no product of sizes overflows.
const maxCache = 1 << 40

// Validate returns an error that names the sizes that are wrong or do not fit each other.
func (c KVCache) Validate() error { return fault.In("ops", "", c.check()) }

// check is Validate without the name of this package in its error.
func (c KVCache) check() error {
	err := cmp.Or(spec.WantPositive("kv heads", c.KVHeads), spec.WantPositive("key dim D", c.KeyDim),
		spec.WantPositive("value dim Dv", c.ValueDim),
		spec.WantPositive("slots", c.Slots), spec.WantPositive("pages", c.Pages), spec.WantPositive("page length", c.PageLen))
	if err == nil && c.Half != (tensor.Dtype{}) && !spec.IsHalf(c.Half) {
		err = fmt.Errorf("cache type is %v, want bfloat16, float16 or none", c.Half)
	}
	if err != nil || c.Dense() {
		return cmp.Or(err, c.checkElements())
	}
	if err := spec.CheckParams(c.Params); err != nil {
		return err
	}
	if c.Without >= 1<<NumBranches {
		return fmt.Errorf("unknown branches are switched off (Without = %03b), want none but the %d branches",
			c.Without, NumBranches)
	}
	if c.branches() == 0 {
		return fmt.Errorf("all branches are switched off (Without = %03b), want at least one", c.Without)
	}
	if c.PageLen%c.SelectBlock != 0 {
		return fmt.Errorf("page length %d is not a multiple of the selection block l' = %d", c.PageLen, c.SelectBlock)
	}
	return c.checkElements()
}

func (c KVCache) checkElements() error {
	tokens := float64(c.Slots)*(float64(c.Window)+float64(c.BlockLen)) + 2*float64(c.Pages)*float64(c.PageLen)
	if n := (tokens*(float64(c.KeyDim)+float64(c.ValueDim)) + 2*float64(c.Slots)) * float64(c.KVHeads); n > maxCache {
		return fmt.Errorf("a cache of %.3g elements, want at most %d", n, int64(maxCache))
	}
	return nil
}

// Elements returns the length of the tensor of a valid cache.
func (c KVCache) Elements() int {
	n := c.Layout().Numbers
	if spec.IsHalf(c.Half) {
		n = (n + 1) / 2
	}
	return n
}

// Region is a part of a cache that holds keys and values in lists of entries. Each group of each slot, or of each page,
// has a list. On the CPU the keys of a list are [D,entries], so that cpu.Tile can multiply queries by them; on a device
// they are [entries,D]. The values are [entries,Dv].
type Region struct {
	Groups, Entries int // groups of a slot or page; entries of a list
	D, Dv           int
	Keys, Values    int // offsets of all keys and of all values in the cache, in numbers
}

// keysAt returns the offset of the keys of group g of a slot or a page.
func (r Region) keysAt(list, g int) int { return r.Keys + (list*r.Groups+g)*r.Entries*r.D }

// valuesAt returns the offset of the values of group g of a slot or a page.
func (r Region) valuesAt(list, g int) int { return r.Values + (list*r.Groups+g)*r.Entries*r.Dv }

// Layout says where the parts of a cache lie.
type Layout struct {
	Tokens     Region // for each page: tokens of the selected branch, or of dense attention
	Compressed Region // for each page: compressed blocks, in the order of their first tokens
	Window     Region // for each slot: token t of the window branch in entry t mod w
	Tail       Region // for each slot: token t before compression, in entry t mod l
	Numbers    int    // size of the cache
}

// counters returns the size, in numbers, of the part at the start of a cache that holds an int32 counter for each slot
// and group. The thread blocks of a kernel count themselves with it. It is 0 between two steps. The CPU does not use
// it.
func (c KVCache) counters() int { return cpu.CeilDiv(2*c.Slots*c.KVHeads, 16) * 16 }

// Layout returns where the parts of a valid cache lie. Backends use it.
func (c KVCache) Layout() (at Layout) {
	at.Numbers = c.counters()
	add := func(lists, entries int) Region {
		r := Region{c.KVHeads, entries, c.KeyDim, c.ValueDim, at.Numbers, at.Numbers + lists*c.KVHeads*entries*c.KeyDim}
		at.Numbers = r.Values + lists*c.KVHeads*entries*c.ValueDim
		return r
	}
	if c.StoresTokens() {
		at.Tokens = add(c.Pages, c.PageLen)
	}
	if c.Stores(Compressed) {
		at.Compressed = add(c.Pages, c.PageLen/c.Stride)
		at.Tail = add(c.Slots, c.BlockLen)
	}
	if c.Has(Window) {
		at.Window = add(c.Slots, c.Window)
	}
	return at
}

// inferCache checks the inputs cache and page table int32 [n,first+P]. P >= 1 is the number of pages of a sequence.
func (c KVCache) inferCache(cache, table spec.Operand, n, first int) error {
	if err := spec.WantShape("cache", cache.Shape, c.Elements()); err != nil {
		return err
	}
	if s := table.Shape; s[0] != n || s[1] <= first {
		return fmt.Errorf("page table has shape %v, want (%d, %d) or wider", s, n, first+1)
	}
	return nil
}

// pageRow returns row i of a page table int32 [n,width].
func pageRow(table spec.Arg, i int) []int32 {
	return cpu.Slice[int32](table.Buf)[i*table.Last():][:table.Last()]
}

// checkPages returns an error if the pages of a slot are too few for the given number of tokens, or if one of them is
// not in the cache.
func (c KVCache) checkPages(slot, tokens int, pages []int32) error {
	if tokens > len(pages)*c.PageLen {
		return fmt.Errorf("slot %d has %d tokens, want at most %d: %d pages of %d", slot, tokens,
			len(pages)*c.PageLen, len(pages), c.PageLen)
	}
	for i, p := range pages[:cpu.CeilDiv(tokens, c.PageLen)] {
		if p < 0 || int(p) >= c.Pages {
			return fmt.Errorf("page %d of slot %d is %d, want 0 to %d", i, slot, p, c.Pages-1)
		}
	}
	return nil
}

// sequenceCache is the part of a cache that belongs to one group of one sequence.
type sequenceCache[T cpu.Float] struct {
	KVCache
	Layout
	data    []T
	slot, g int
	pages   []int32
}

// entries are n adjoining entries of a list of a region: dimension i of key j is keys[i*ld+j], and its value is
// values[j*Dv:].
type entries[T cpu.Float] struct {
	keys, values []T
	ld, n        int
}

// entries returns n entries of a list, from the given one on. list is the slot or the page.
func (s *sequenceCache[T]) entries(r Region, list, entry, n int) entries[T] {
	return entries[T]{s.data[r.keysAt(list, s.g)+entry:], s.data[r.valuesAt(list, s.g)+entry*r.Dv:], r.Entries, n}
}

// put stores a key and a value at the first entry.
func (p entries[T]) put(key, value []T) {
	for i, x := range key {
		p.keys[i*p.ld] = x
	}
	copy(p.values, value)
}

// tokenEntry returns the entry of token t in its page.
func (s *sequenceCache[T]) tokenEntry(t int) entries[T] {
	return s.entries(s.Layout.Tokens, int(s.pages[t/s.PageLen]), t%s.PageLen, 1)
}

// blockEntry returns the entry of compression block i in its page.
func (s *sequenceCache[T]) blockEntry(i int) entries[T] {
	n := s.Layout.Compressed.Entries
	return s.entries(s.Layout.Compressed, int(s.pages[i/n]), i%n, 1)
}

// windowEntry returns the entry of token t of the window branch.
func (s *sequenceCache[T]) windowEntry(t int) entries[T] {
	return s.entries(s.Layout.Window, s.slot, t%s.KVCache.Window, 1)
}

// tailEntry returns the entry of token t before compression.
func (s *sequenceCache[T]) tailEntry(t int) entries[T] {
	return s.entries(s.Layout.Tail, s.slot, t%s.BlockLen, 1)
}

// entryIterator iterates over entries of a region. The entries that next returns lie in one list. A copy goes on from
// the same entry.
type entryIterator[T cpu.Float] struct {
	seq *sequenceCache[T]
	Region
	paged  bool    // the region has lists for pages, not for slots
	lo, hi int     // entries to come
	idx    []int32 // selection blocks whose tokens follow the entries [lo,hi)
	end    int     // end of the tokens in these blocks
}

// next returns the next entries; ok is false after the last ones.
func (it *entryIterator[T]) next() (next entries[T], ok bool) {
	for it.lo >= it.hi {
		if len(it.idx) == 0 || it.idx[0] < 0 {
			return next, false
		}
		it.lo = int(it.idx[0]) * it.seq.SelectBlock
		it.hi, it.idx = min(it.lo+it.seq.SelectBlock, it.end), it.idx[1:]
	}
	entry, list := it.lo%it.Entries, it.seq.slot
	if it.paged {
		list = int(it.seq.pages[it.lo/it.Entries])
	}
	n := min(it.hi-it.lo, it.Entries-entry)
	it.lo += n
	return it.seq.entries(it.Region, list, entry, n), true
}

// tokens iterates over the first n tokens.
func (s *sequenceCache[T]) tokens(n int) entryIterator[T] {
	return entryIterator[T]{seq: s, Region: s.Layout.Tokens, paged: true, hi: n}
}

// compressedKeys iterates over the first n compressed blocks.
func (s *sequenceCache[T]) compressedKeys(n int) entryIterator[T] {
	return entryIterator[T]{seq: s, Region: s.Layout.Compressed, paged: true, hi: n}
}

// windowTokens iterates over the tokens [lo,hi) of the window branch.
func (s *sequenceCache[T]) windowTokens(lo, hi int) entryIterator[T] {
	return entryIterator[T]{seq: s, Region: s.Layout.Window, lo: lo, hi: hi}
}

// tail iterates over the tokens [lo,hi) before compression.
func (s *sequenceCache[T]) tail(lo, hi int) entryIterator[T] {
	return entryIterator[T]{seq: s, Region: s.Layout.Tail, lo: lo, hi: hi}
}

// selectedTokens iterates over the tokens up to t of the selection blocks that idx names, ascending and padded with -1.
func (s *sequenceCache[T]) selectedTokens(idx []int32, t int) entryIterator[T] {
	return entryIterator[T]{seq: s, Region: s.Layout.Tokens, paged: true, idx: idx, end: t + 1}
}

// SettledPages returns how many first pages of a sequence of n tokens later tokens do not change. Sequences may share
// them. A page changes until it is full, and until the compression blocks that begin in it are.
func (c KVCache) SettledPages(n int) int {
	if c.Stores(Compressed) {
		n -= c.BlockLen - c.Stride
	}
	return max(0, n) / c.PageLen
}

// Runs returns the runs [from,to) of numbers of a cache that belong to the given pages and to the rings of a slot: what
// a copy of a sequence needs, besides its settled pages.
func (c KVCache) Runs(slot int, pages []int32) (runs [][2]int) {
	at := c.Layout()
	add := func(r Region, list int) {
		if r.Entries > 0 {
			runs = append(runs, [2]int{r.keysAt(list, 0), r.keysAt(list+1, 0)}, [2]int{r.valuesAt(list, 0), r.valuesAt(list+1, 0)})
		}
	}
	for _, p := range pages {
		add(at.Tokens, int(p))
		add(at.Compressed, int(p))
	}
	add(at.Tail, slot)
	add(at.Window, slot)
	return runs
}
