package cuda_test

import (
	"errors"
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda"
)

// The reason why there is no GPU to use.
func ExampleOpen() {
	b, err := cuda.Open(0)
	if none := (*cuda.Unavailable)(nil); errors.As(err, &none) {
		fmt.Println("no GPU:", none.Reason)
		return
	}
	check(err)
	fmt.Println(cuda.Describe(b))
	check(b.Close())
}
