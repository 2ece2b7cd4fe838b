package cpu

// GemmShape describes a matrix product C = op(A)·op(B) of row-major, contiguous operands: op(A) is [M,K], op(B) is
// [K,N], C is [M,N]. With TransA the memory of A is [K,M]; with TransB that of B is [N,K].
type GemmShape struct {
	M, N, K        int
	TransA, TransB bool
}

// Gemm adds to k the phases of C = op(A)·op(B) + bias. bias, of N elements, is added to each row; nil is none. The sum
// over K of one element of C is cut only by K, so the bits do not depend on the number of workers. A zero M or N does
// nothing; a zero K gives the bias alone.
func Gemm[T Float](k *Kernel, s GemmShape, a, b, bias, c *Buf) {
	const rows = 16
	k.Phase((s.M+rows-1)/rows, func(piece int, w *Worker) {
		A, B, C := Slice[T](a), Slice[T](b), Slice[T](c)
		for i := piece * rows; i < min(s.M, (piece+1)*rows); i++ {
			for j := range s.N {
				var sum T
				for p := range s.K {
					x, y := i*s.K+p, p*s.N+j
					if s.TransA {
						x = p*s.M + i
					}
					if s.TransB {
						y = j*s.K + p
					}
					sum += A[x] * B[y]
				}
				if bias != nil {
					sum += Slice[T](bias)[j]
				}
				C[i*s.N+j] = sum
			}
		}
	})
}
