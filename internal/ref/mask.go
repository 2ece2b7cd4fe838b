package ref

// Mask reports whether query t of batch b sees key s of group g. A key is a token, or a compression block where the
// keys are compressed.
type Mask func(b, g, t, s int) bool

// CausalMask shows every token up to the query's own: s <= t.
func CausalMask() Mask { return func(_, _, t, s int) bool { return s <= t } }

// WindowMask shows the w newest tokens, the query's own included: t - w < s <= t.
func WindowMask(w int) Mask { return func(_, _, t, s int) bool { return s <= t && s > t-w } }

// CompressedMask shows the compression blocks that end at or before t; s counts blocks.
func CompressedMask(l, d int) Mask {
	return func(_, _, t, s int) bool { return s < NumVisible(t, l, d) }
}

// SelectedMask shows the tokens of the chosen selection blocks that are not in the future. idx holds n block indices
// for each query and group, [B,S,Hkv,n] with n = len(idx) / (B*S*Hkv); negative ones are padding, order and repetition
// do not matter. Later changes of idx are not seen.
func SelectedMask(idx []int32, B, S, Hkv, lp int) Mask {
	n := len(idx) / (B * S * Hkv)
	ns := NumSelection(S, lp)
	hit := make([]bool, B*S*Hkv*ns) // [B,S,Hkv,Ns]
	for i, j := range idx {
		if j >= 0 {
			hit[i/n*ns+int(j)] = true
		}
	}
	return func(b, g, t, s int) bool { return s <= t && hit[((b*S+t)*Hkv+g)*ns+s/lp] }
}
