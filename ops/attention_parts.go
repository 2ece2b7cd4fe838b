package ops

import "github.com/gorgonia-nsa/nsa/internal/cpu"

// Where a group has at least fewKeys times as many queries as keys (compressed attention), its queries are cut into as many
// parts, at most mostParts. Each part has its own dk and dv for all keys, which are summed at the end; together they are no
// larger than q. The scores are then computed once instead of twice, and the work is parallel over queries instead of the
// few keys.
const (
	fewKeys   = 4
	mostParts = 32
)

// keyParts are the partial sums of dk and dv: [B,Hkv,n,T,D] and [B,Hkv,n,T,Dv].
type keyParts struct {
	n      int
	dk, dv *cpu.Buf
}

func bindKeyParts[T cpu.Float](k *cpu.Kernel, a dims, n int) keyParts {
	size := a.b * a.hkv * n * a.t
	return keyParts{n, cpu.Work[T](k, size*a.d), cpu.Work[T](k, size*a.dv)}
}

// queryPart computes the dq of every n-th tile of rows of a group, and what these give to dk and dv.
func (f *spanBackward[T]) queryPart(piece int, w *cpu.Worker) {
	bg, part := piece/f.parts.n, piece%f.parts.n
	b, g := bg/f.hkv, bg%f.hkv
	dk := cpu.Slice[T](f.parts.dk)[piece*f.t*f.d:][:f.t*f.d]
	dv := cpu.Slice[T](f.parts.dv)[piece*f.t*f.dv:][:f.t*f.dv]
	clear(dk)
	clear(dv)
	for t0 := part * f.tokens; t0 < f.s; t0 += f.parts.n * f.tokens {
		f.rowGrad(b, g, t0, min(f.s, t0+f.tokens), dk, dv, w)
	}
}

// bindSumOfParts adds the phase that sums the parts, in their order, to dk [B,T,Hkv,D] and dv [B,T,Hkv,Dv].
func bindSumOfParts[T cpu.Float](k *cpu.Kernel, a dims, p keyParts, dk, dv Arg) {
	sum := func(x Arg, parts *cpu.Buf, b, g, key, c int) {
		row, all := cpu.Slice[T](x.Buf)[a.key(b, key, g, c):][:c], cpu.Slice[T](parts)
		at := (b*a.hkv+g)*p.n*a.t + key
		copy(row, all[at*c:])
		for i := 1; i < p.n; i++ {
			cpu.Add(row, row, all[(at+i*a.t)*c:][:c])
		}
	}
	cuts := (a.t + keyTile - 1) / keyTile
	k.Phase(a.b*a.hkv*cuts, func(piece int, _ *cpu.Worker) {
		bg, from := piece/cuts, piece%cuts*keyTile
		b, g := bg/a.hkv, bg%a.hkv
		for key := from; key < min(a.t, from+keyTile); key++ {
			sum(dk, p.dk, b, g, key, a.d)
			sum(dv, p.dv, b, g, key, a.dv)
		}
	})
}
