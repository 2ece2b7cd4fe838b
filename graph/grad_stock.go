package graph

import (
	"errors"
	"fmt"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
)

// diffWRT returns which inputs of n have a gradient; nil if its op is no SDOp. A panic comes back as an error.
func diffWRT(n *G.Node, inputs int) (diffs []bool, err error) {
	defer recoverAsError(&err)
	op, ok := n.Op().(G.SDOp)
	if !ok {
		return nil, nil
	}
	switch gorgoniaType(op) {
	case "sliceIncrOp": // upstream says that input 0 has one, but of this only the shape counts
		return []bool{false, true}, nil
	case "atOp", "batchnormDiffOp", "groupNormDiffOp": // upstream says that they are constant
		return nil, nil
	}
	if why := wrongGradient(n); why != "" {
		return nil, errors.New("Gorgonia's is " + why)
	}
	if diffs = op.DiffWRT(inputs); len(diffs) >= inputs { // CTCLoss counts its output, too
		return diffs[:inputs], nil
	}
	if len(diffs) == 0 {
		return make([]bool, inputs), nil
	}
	return nil, fmt.Errorf("DiffWRT returned %d results for %d inputs", len(diffs), inputs)
}

// wrongGradient says what is wrong with the SymDiff of the op of n in Gorgonia v0.9.18, if corrected has nothing
// better; "" if it is right.
func wrongGradient(n *G.Node) string {
	switch op := n.Op(); gorgoniaType(op) {
	case "avgPoolOp":
		if boolField(op, "explicitPadding") {
			return "wrong"
		}
	case "ctcLossOp":
		if G.Reduction(intField(op, "reduction")) == G.ReductionMean {
			return "wrong for the mean: take the sum"
		}
	}
	return ""
}

// corrected returns the gradients of ops whose SymDiff is wrong in Gorgonia v0.9.18, and nil for all others. It panics
// if an op cannot be added.
func corrected(n *G.Node, inputs G.Nodes, grad *G.Node) G.Nodes {
	if gorgoniaType(n.Op()) == "" || len(inputs) == 0 {
		return nil
	}
	switch gorgoniaType(n.Op()) {
	case "col2imOp": // upstream takes the SymDiff of an embedded im2colOp for its own
		pair := func(h, w string) tensor.Shape { return tensor.Shape{intField(n.Op(), h), intField(n.Op(), w)} }
		return G.Nodes{G.Must(G.Im2Col(grad, pair("h", "w"), pair("padH", "padW"), pair("strideH", "strideW"),
			pair("dilationH", "dilationW")))}
	case "avgPoolOp": // upstream adds each window to one element, and pools the sums
		return G.Nodes{avgPoolGrad(n.Op(), inputs[0].Shape(), grad)}
	case "sparsemaxOp": // upstream forgets the axis. Where the result is above 0, dx is dy minus the mean of dy there
		axis := (intField(n.Op(), "axis") + n.Dims()) % n.Dims()
		support := G.Must(G.Gt(n, constant(n, 0), true))
		total := func(x *G.Node) *G.Node { // over the axis, which stays with one element
			shape := n.Shape().Clone()
			shape[axis] = 1
			return G.Must(G.Reshape(G.Must(G.Sum(x, axis)), shape))
		}
		mean := G.Must(G.HadamardDiv(total(G.Must(G.HadamardProd(support, grad))), total(support)))
		minus := G.Must(G.BroadcastSub(grad, mean, nil, []byte{byte(axis)}))
		return G.Nodes{G.Must(G.HadamardProd(support, minus))}
	// upstream divides by p. y/x is right in evaluation, too; where x is 0 it is unknown, and its mean is 1
	case "dropoutOp":
		isZero := G.Must(G.Eq(inputs[0], constant(n, 0), true))
		factor := G.Must(G.HadamardDiv(G.Must(G.Add(n, isZero)), G.Must(G.Add(inputs[0], isZero))))
		return G.Nodes{G.Must(G.HadamardProd(factor, grad))}
	}
	var factor *G.Node
	switch n.Op().String() {
	case "log2": // upstream multiplies by ln 2 instead of dividing
		factor = G.Must(G.Inverse(G.Must(G.HadamardProd(inputs[0], constant(n, math.Ln2)))))
	case "invSqrt": // upstream divides by 2 y³ instead of multiplying by y³/2
		factor = G.Must(G.HadamardProd(G.Must(G.Cube(n)), constant(n, -0.5)))
	case "a ⊗ b": // upstream swaps the two factors
		return G.Nodes{G.Must(G.Mul(grad, inputs[1])), G.Must(G.Mul(G.Must(G.Transpose(grad, 1, 0)), inputs[0]))}
	// its gradient takes the log of the input; for the log of a softmax Gorgonia turns the softmax node itself into a
	// log softmax
	case "^ false":
		if gorgoniaType(inputs[0].Op()) != "softmaxOp" {
			return nil
		}
		grads, err := n.Op().(G.SDOp).SymDiff(G.Nodes{G.Must(ops.Add(inputs[0])), inputs[1]}, n, grad)
		if err != nil {
			panic(err)
		}
		return grads
	// upstream normalises a column along axis 0, and differentiates along axis 1
	case "Softmax{-1, false}()", "Softmax{-1, true}()":
		x := inputs[0].Shape()
		if !x.IsColVec() {
			return nil
		}
		vector := func(n *G.Node) *G.Node { return G.Must(G.Reshape(n, tensor.Shape{x[0]})) }
		grads, err := n.Op().(G.SDOp).SymDiff(G.Nodes{vector(inputs[0])}, vector(n), vector(grad))
		if err != nil {
			panic(err)
		}
		return G.Nodes{G.Must(G.Reshape(grads[0], x.Clone()))}
	default:
		return nil
	}
	return G.Nodes{G.Must(G.HadamardProd(factor, grad))}
}

// avgPoolGrad adds the gradient of average pooling over an image of this shape: each window adds grad, over the width
// of the image, to its elements. It does so by the gradient of Im2Col, whose rows are the windows.
func avgPoolGrad(op G.Op, shape tensor.Shape, grad *G.Node) *G.Node {
	pair := func(h, w string) tensor.Shape { return tensor.Shape{intField(op, h), intField(op, w)} }
	kernel, images := pair("h", "w"), tensor.Shape{shape[0] * shape[1], 1, shape[2], shape[3]}
	elsewhere := G.NewTensor(G.NewGraph(), grad.Dtype(), 4, G.WithShape(images...), G.WithName("images"))
	pad, stride := pair("padNorth", "padWest"), pair("strideH", "strideW")
	windows := G.Must(G.Im2Col(elsewhere, kernel, pad, stride, tensor.Shape{1, 1}))
	each := G.Must(G.HadamardDiv(grad, constant(grad, float64(shape[3]))))
	each = G.Must(G.Reshape(each, append(windows.Shape()[:3].Clone(), 1)))
	if elements := kernel.TotalSize(); elements > 1 {
		each = G.Must(G.Concat(3, slices.Repeat(G.Nodes{each}, elements)...))
	}
	grads, err := windows.Op().(G.SDOp).SymDiff(G.Nodes{elsewhere}, windows, each)
	if err != nil {
		panic(err)
	}
	return G.Must(G.Reshape(grads[0], shape.Clone()))
}

// constant returns a constant of the type of n, float32 or float64.
func constant(n *G.Node, v float64, opts ...G.NodeConsOpt) *G.Node {
	if n.Dtype() == tensor.Float32 {
		return G.NewConstant(float32(v), opts...)
	}
	return G.NewConstant(v, opts...)
}
