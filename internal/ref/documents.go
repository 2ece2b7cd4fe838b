package ref

import "slices"

// Documents are packed into the rows of a batch of B x S tokens. Tokens are counted row by row, and document i holds
// the tokens [CU[i], CU[i+1]). Its compressed keys, of blocks of L tokens at a stride of D, follow those of the
// documents before it in its row.
type Documents struct {
	B, S, L, D int
	CU         []int32
}

// Document is a document that is not empty: the tokens [First,End) and the compressed keys [Key,KeyEnd) of row B.
type Document struct{ B, First, End, Key, KeyEnd int }

// List returns the documents that are not empty.
func (x Documents) List() (list []Document) {
	key := 0
	for i := range len(x.CU) - 1 {
		first, end := int(x.CU[i]), int(x.CU[i+1])
		if first == end {
			continue
		}
		if first%x.S == 0 {
			key = 0
		}
		n := 0
		if x.L > 0 {
			n = NumCompressed(end-first, x.L, x.D)
		}
		list = append(list, Document{first / x.S, first % x.S, first%x.S + end - first, key, key + n})
		key += n
	}
	return list
}

func (x Documents) byToken() []Document {
	of := make([]Document, x.B*x.S)
	for _, d := range x.List() {
		for t := d.First; t < d.End; t++ {
			of[d.B*x.S+t] = d
		}
	}
	return of
}

// Rows returns the rows of an array that belong to a document: its tokens, or its compressed keys.
type Rows func(d Document) (first, end int)

// Tokens returns the rows of a document in arrays [B,S,...].
func Tokens(d Document) (first, end int) { return d.First, d.End }

// Keys returns the rows of a document in arrays [B,Nc,...].
func Keys(d Document) (first, end int) { return d.Key, d.KeyEnd }

// Cut returns a copy of a document's rows of x: [1,n,...].
func Cut(x *Tensor, d Document, rows Rows) *Tensor {
	first, end := rows(d)
	y := New(append([]int{1, end - first}, x.Shape[2:]...)...)
	for i := first; i < end; i++ {
		copy(y.Row(0, i-first), x.Row(d.B, i))
	}
	return y
}

// Paste copies y, the rows of a document, to their place in x.
func Paste(x, y *Tensor, d Document, rows Rows) {
	first, end := rows(d)
	for i := first; i < end; i++ {
		copy(x.Row(d.B, i), y.Row(0, i-first))
	}
}

// Map applies f to the rows of each document in in, and returns an array of the given shape with the results. Rows of
// no document are zero.
func (x Documents) Map(in *Tensor, from, to Rows, f func(alone *Tensor) *Tensor, shape ...int) *Tensor {
	out := New(shape...)
	for _, d := range x.List() {
		Paste(out, f(Cut(in, d, from)), d, to)
	}
	return out
}

// Mask shows the keys of a query's document that mask shows if the document is alone.
func (x Documents) Mask(mask Mask) Mask {
	of := x.byToken()
	return func(b, g, t, s int) bool {
		d := of[b*x.S+t]
		return d.First <= s && s < d.End && mask(b, g, t-d.First, s-d.First)
	}
}

// CompressedMask shows the compression blocks of a query's document that end at or before the query.
func (x Documents) CompressedMask() Mask {
	of, mask := x.byToken(), CompressedMask(x.L, x.D)
	return func(b, g, t, s int) bool {
		d := of[b*x.S+t]
		return d.Key <= s && s < d.KeyEnd && mask(b, g, t-d.First, s-d.Key)
	}
}

// SelectedMask is the function SelectedMask for documents: the blocks idx [B,S,Hkv,n] count from the first block of the
// query's document.
func (x Documents) SelectedMask(idx []int32, Hkv, lp int) Mask {
	of, n := x.byToken(), len(idx)/(x.B*x.S*Hkv)
	return func(b, g, t, s int) bool {
		d := of[b*x.S+t]
		return d.First <= s && s <= t && slices.Contains(idx[((b*x.S+t)*Hkv+g)*n:][:n], int32((s-d.First)/lp))
	}
}

// SelectBlocks applies the function SelectBlocks to each document alone: q [B,S,Hq,D], kc [B,Nc,Hkv,D] -> idx
// [B,S,Hkv,n].
func (x Documents) SelectBlocks(q, kc *Tensor, lp, n int) []int32 {
	Hkv := kc.Shape[2]
	idx := make([]int32, x.B*x.S*Hkv*n)
	for _, d := range x.List() {
		alone, _ := SelectBlocks(Cut(q, d, Tokens), Cut(kc, d, Keys), x.L, x.D, lp, n)
		copy(idx[(d.B*x.S+d.First)*Hkv*n:], alone)
	}
	return idx
}
