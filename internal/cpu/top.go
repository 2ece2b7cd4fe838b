package cpu

// Top sets ids to the indices of the largest len(ids) elements of x, which has at least as many. They are in falling
// order, those of equal elements ascending. NaN comes before all numbers, and -0 equals 0.
func Top[T Float](ids []int32, x []T) {
	k := len(ids)
	if k == 0 {
		return
	}
	for i := range ids {
		ids[i] = int32(i)
	}
	for i := k/2 - 1; i >= 0; i-- {
		siftDown(ids, x, i)
	}
	least := x[ids[0]]
	for i := k; i < len(x); i++ {
		if !(x[i] <= least) && comesAfter(x, ids[0], int32(i)) {
			ids[0] = int32(i)
			siftDown(ids, x, 0)
			least = x[ids[0]]
		}
	}
	for n := k - 1; n > 0; n-- {
		ids[0], ids[n] = ids[n], ids[0]
		siftDown(ids[:n], x, 0)
	}
}

// siftDown restores the heap whose root is ids[i]. A parent comes after its children in the order of Top.
func siftDown[T Float](ids []int32, x []T, i int) {
	for {
		last := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(ids); child++ {
			if comesAfter(x, ids[child], ids[last]) {
				last = child
			}
		}
		if last == i {
			return
		}
		ids[i], ids[last] = ids[last], ids[i]
		i = last
	}
}

// comesAfter reports whether element a comes after element b in the order of Top.
func comesAfter[T Float](x []T, a, b int32) bool {
	switch v, w := x[a], x[b]; {
	case v < w:
		return true
	case v > w:
		return false
	case v == w || v != v && w != w:
		return a > b
	default:
		return w != w
	}
}
