package kernels

// Cast converts N elements between float32 and half precision: memory.cu.
type Cast struct {
	From, To Type // one of them F32
	N        int64
}

type castParams struct {
	x, y Ptr
	n    int64
}

type fillParams struct {
	y     Ptr
	n     int64
	value uint32
	_     int32
}

// Forward appends y = x in the other type, rounded to nearest even.
func (op Cast) Forward(to []Launch, x, y Ptr) ([]Launch, error) {
	const name = "cast"
	if err := check(name, op.From, size{"n", op.N}); err != nil {
		return to, err
	}
	if err := checkOut(name, op.To); err != nil {
		return to, err
	}
	kernel := ""
	switch {
	case op.From == op.To:
		return Copy(to, x, y, op.N*int64(op.From.Bytes()))
	case op.From == F32:
		kernel = names.castTo[op.To]
	case op.To == F32:
		kernel = names.castFrom[op.From]
	default:
		return to, unsupported(name, "from %v to %v, want %v on one side", op.From, op.To, F32)
	}
	return append(to, launch(kernel, elements(F32, op.N), threads, 0, &castParams{x, y, op.N})), nil
}

// Fill appends n words of 32 bits, or of 16, set to value.
func Fill(to []Launch, y Ptr, n int64, value uint32, bits int) ([]Launch, error) {
	if err := check("fill", F32, size{"n", n}); err != nil {
		return to, err
	}
	kernel := names.fill32
	switch bits {
	case 32:
	case 16:
		kernel = names.fill16
	default:
		return to, unsupported("fill", "words of %d bits, want 16 or 32", bits)
	}
	return append(to, launch(kernel, blocks(pieces(n, 256)), threads, 0, &fillParams{y: y, n: n, value: value})), nil
}

// Copy appends a copy of bytes on the device, from x to y, which do not overlap.
func Copy(to []Launch, x, y Ptr, bytes int64) ([]Launch, error) {
	if err := check("copy", F32, size{"bytes", bytes}); err != nil {
		return to, err
	}
	return append(to, launch(names.copying, blocks(pieces(bytes, 256*16)), threads, 0, &castParams{x, y, bytes})), nil
}
