package kernels

// GatedSum is the sum of gate times branch, gates [Rows,n] and n branches [Rows,Dim], and its gradient: gate.cu.
type GatedSum struct {
	Type      Type
	Rows, Dim int64
}

// MaxBranches is the number of branches that a gated sum takes.
const MaxBranches = 8

type gatedSumParams struct {
	gates     Ptr
	branch    [MaxBranches]Ptr
	y         Ptr
	rows, dim int64
	n, _      int32
}

type gatedSumGradParams struct {
	gates      Ptr
	branch     [MaxBranches]Ptr
	dy, dgates Ptr
	dbranch    [MaxBranches]Ptr
	rows, dim  int64
	n, _       int32
}

// Forward appends y [Rows,Dim].
func (op GatedSum) Forward(to []Launch, gates, y Ptr, branches ...Ptr) ([]Launch, error) {
	if err := op.check("gated sum", len(branches)); err != nil {
		return to, err
	}
	p := gatedSumParams{gates: gates, y: y, rows: op.Rows, dim: op.Dim, n: int32(len(branches))}
	copy(p.branch[:], branches)
	return append(to, launch(names.gatedSum[op.Type], elements(op.Type, op.Rows*op.Dim), threads, 0, &p)), nil
}

// Backward appends dgates and dbranches, as many as branches.
func (op GatedSum) Backward(to []Launch, gates, dy, dgates Ptr, branches, dbranches []Ptr) ([]Launch, error) {
	const name = "gradient of gated sum"
	if err := op.check(name, len(branches)); err != nil {
		return to, err
	}
	if len(dbranches) != len(branches) {
		return to, unsupported(name, "%d gradients of %d branches", len(dbranches), len(branches))
	}
	p := gatedSumGradParams{gates: gates, dy: dy, dgates: dgates, rows: op.Rows, dim: op.Dim, n: int32(len(branches))}
	copy(p.branch[:], branches)
	copy(p.dbranch[:], dbranches)
	team := 1 // threads of a row
	for team < 32 && int64(team*16/op.Type.Bytes()) < op.Dim {
		team *= 2
	}
	block := Dim{team, threads.X / team, 1}
	return append(to, launch(names.gatedSumGrad[op.Type], rowBlocks(op.Rows, block), block, 0, &p)), nil
}

func (op GatedSum) check(name string, branches int) error {
	if branches < 1 || branches > MaxBranches {
		return unsupported(name, "%d branches, want 1 to %d", branches, MaxBranches)
	}
	return check(name, op.Type, size{"rows", op.Rows}, size{"dim", op.Dim})
}
