package ref

// NumCompressed returns Nc, the number of complete compression blocks in S tokens: 0 if S < l, else (S-l)/d + 1. Block
// i covers the tokens [i*d, i*d + l).
func NumCompressed(S, l, d int) int {
	if S < l {
		return 0
	}
	return (S-l)/d + 1
}

// NumVisible returns the number of compression blocks that query t sees: those that end at or before t, that is blocks
// 0 to NumVisible-1. It does not depend on the sequence's length.
func NumVisible(t, l, d int) int { return NumCompressed(t+1, l, d) }

// CompressMean returns the mean of each block: x [B,S,Hkv,D] -> [B,Nc,Hkv,D].
func CompressMean(x *Tensor, l, d int) *Tensor {
	B, S, H, D := x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]
	y := New(B, NumCompressed(S, l, d), H, D)
	eachToken(y, l, func(b, i, j int) { axpy(1/float64(l), x.Row(b, i*d+j), y.Row(b, i)) })
	return y
}

// CompressMeanGrad returns dx [B,S,Hkv,D] from dy [B,Nc,Hkv,D]: the dx of a token is the sum of dy/l over the blocks
// that cover it. Tokens after the last block get 0.
func CompressMeanGrad(dy *Tensor, S, l, d int) *Tensor {
	dx := New(dy.Shape[0], S, dy.Shape[2], dy.Shape[3])
	eachToken(dy, l, func(b, i, j int) { axpy(1/float64(l), dy.Row(b, i), dx.Row(b, i*d+j)) })
	return dx
}

// CompressMLP returns W2 silu(W1 vec(block + pe)) of each block and head: x [B,S,Hkv,D] -> [B,Nc,Hkv,D]. pe [l,D] is
// the intra-block position embedding. The heads share pe, w1 [hidden,l*D] and w2 [D,hidden]. vec is row-major, with the
// position in the block as the outer axis.
func CompressMLP(x *Tensor, l, d int, pe, w1, w2 *Tensor) *Tensor {
	return Linear(SiLU(Linear(blocks(x, l, d, pe), w1, nil)), w2, nil)
}

// CompressMLPGrad returns the gradients of CompressMLP with respect to x, pe, w1 and w2 from dy [B,Nc,Hkv,D].
func CompressMLPGrad(x *Tensor, l, d int, pe, w1, w2, dy *Tensor) (dx, dpe, dw1, dw2 *Tensor) {
	in := blocks(x, l, d, pe)
	hidden := Linear(in, w1, nil)
	dact, dw2, _ := LinearGrad(SiLU(hidden), w2, dy)
	din, dw1, _ := LinearGrad(in, w1, SiLUGrad(hidden, dact))

	dx, dpe = like(x), like(pe)
	D := x.Shape[3]
	eachToken(din, l, func(b, i, j int) {
		for g := range x.Shape[2] {
			row := din.Row(b, i, g)[j*D : (j+1)*D]
			axpy(1, row, dx.Row(b, i*d+j, g))
			axpy(1, row, dpe.Row(j))
		}
	})
	return dx, dpe, dw1, dw2
}

// blocks gathers the blocks of x [B,S,Hkv,D] for each head and adds pe [l,D]: [B,Nc,Hkv,l*D].
func blocks(x *Tensor, l, d int, pe *Tensor) *Tensor {
	B, S, H, D := x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]
	y := New(B, NumCompressed(S, l, d), H, l*D)
	eachToken(y, l, func(b, i, j int) {
		for g := range H {
			row := y.Row(b, i, g)[j*D : (j+1)*D]
			copy(row, pe.Row(j))
			axpy(1, x.Row(b, i*d+j, g), row)
		}
	})
	return y
}

// eachToken calls f for each of the l tokens of each block of y [B,Nc,...]. Token j of block i is token i*d+j of its
// sequence.
func eachToken(y *Tensor, l int, f func(b, i, j int)) {
	for b := range y.Shape[0] {
		for i := range y.Shape[1] {
			for j := range l {
				f(b, i, j)
			}
		}
	}
}
