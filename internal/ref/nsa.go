package ref

// Params are the sizes of NSA: d divides l, d divides l'.
type Params struct {
	BlockLen    int // l: tokens in a compression block
	Stride      int // d: tokens between the starts of two compression blocks
	SelectBlock int // l': tokens in a selection block
	TopN        int // n: selection blocks of a query, the forced ones included
	Window      int // w: tokens of the sliding window, the query's own included
}

// Inputs are the arguments of NSA, or the gradients by them. Each branch has its own keys and values.
type Inputs struct {
	Q          *Tensor // [B,S,Hq,D]
	KCmp, VCmp *Tensor // [B,S,Hkv,D], [B,S,Hkv,Dv], tokens: NSA compresses them
	KSel, VSel *Tensor // [B,S,Hkv,D], [B,S,Hkv,Dv]
	KWin, VWin *Tensor // [B,S,Hkv,D], [B,S,Hkv,Dv]
	Gates      *Tensor // [B,S,Hq,3], activated, in the order compressed, selected, window
	PhiK, PhiV *Phi    // compression of keys and of values; nil: the mean
}

// Phi holds the parameters of CompressMLP, or the gradients by them.
type Phi struct {
	PE, W1, W2 *Tensor // [l,D], [hidden,l*D], [D,hidden]
}

// Outputs are the result of NSA and everything on the way to it.
type Outputs struct {
	KC, VC       *Tensor // [B,Nc,Hkv,D], [B,Nc,Hkv,Dv], compressed keys and values
	OCmp, LSECmp *Tensor // [B,S,Hq,Dv], [B,Hq,S], compressed branch
	Idx          []int32 // [B,S,Hkv,n], chosen blocks
	Score        *Tensor // [B,S,Hkv,Ns], their scores
	OSel, LSESel *Tensor // [B,S,Hq,Dv], [B,Hq,S], selected branch
	OWin, LSEWin *Tensor // [B,S,Hq,Dv], [B,Hq,S], window branch
	O            *Tensor // [B,S,Hq,Dv], gated sum of the branches
}

// NSA returns native sparse attention: the three branches and their gated sum (equation 5).
func NSA(in Inputs, p Params) Outputs {
	var out Outputs
	out.KC = compress(in.KCmp, in.PhiK, p)
	out.VC = compress(in.VCmp, in.PhiV, p)
	out.OCmp, out.LSECmp = Attention(in.Q, out.KC, out.VC, CompressedMask(p.BlockLen, p.Stride))
	out.Idx, out.Score = SelectBlocks(in.Q, out.KC, p.BlockLen, p.Stride, p.SelectBlock, p.TopN)
	out.OSel, out.LSESel = Attention(in.Q, in.KSel, in.VSel, selectedMask(in, out.Idx, p))
	out.OWin, out.LSEWin = Attention(in.Q, in.KWin, in.VWin, WindowMask(p.Window))
	out.O = GatedSum(in.Gates, out.OCmp, out.OSel, out.OWin)
	return out
}

// NSAGrad returns the gradients by all inputs from do [B,S,Hq,Dv], given the results of NSA, with the selection held
// fixed. PhiK and PhiV of the result are nil where those of in are.
func NSAGrad(in Inputs, p Params, out Outputs, do *Tensor) Inputs {
	var g Inputs
	var branch []*Tensor
	g.Gates, branch = GatedSumGrad(in.Gates, do, out.OCmp, out.OSel, out.OWin)

	dqc, dkc, dvc := AttentionGrad(in.Q, out.KC, out.VC, out.OCmp, branch[0], CompressedMask(p.BlockLen, p.Stride))
	g.KCmp, g.PhiK = compressGrad(in.KCmp, in.PhiK, p, dkc)
	g.VCmp, g.PhiV = compressGrad(in.VCmp, in.PhiV, p, dvc)

	var dqs, dqw *Tensor
	dqs, g.KSel, g.VSel = AttentionGrad(in.Q, in.KSel, in.VSel, out.OSel, branch[1], selectedMask(in, out.Idx, p))
	dqw, g.KWin, g.VWin = AttentionGrad(in.Q, in.KWin, in.VWin, out.OWin, branch[2], WindowMask(p.Window))
	g.Q = Add(dqc, dqs, dqw)
	return g
}

func selectedMask(in Inputs, idx []int32, p Params) Mask {
	return SelectedMask(idx, in.KSel.Shape[0], in.KSel.Shape[1], in.KSel.Shape[2], p.SelectBlock)
}

func compress(x *Tensor, phi *Phi, p Params) *Tensor {
	if phi == nil {
		return CompressMean(x, p.BlockLen, p.Stride)
	}
	return CompressMLP(x, p.BlockLen, p.Stride, phi.PE, phi.W1, phi.W2)
}

func compressGrad(x *Tensor, phi *Phi, p Params, dy *Tensor) (*Tensor, *Phi) {
	if phi == nil {
		return CompressMeanGrad(dy, x.Shape[1], p.BlockLen, p.Stride), nil
	}
	var d Phi
	var dx *Tensor
	dx, d.PE, d.W1, d.W2 = CompressMLPGrad(x, p.BlockLen, p.Stride, phi.PE, phi.W1, phi.W2, dy)
	return dx, &d
}
