package spec

// Invert is a counting sort. For each v = 0, 1, ... it lists the i in [0,n) for which values(i) contains v, in
// ascending order. It writes these lists one after the other, and sets ends[v] to the end of the list of v.
func Invert(n int, values func(i int) []int32, lists, ends []int32) {
	clear(ends)
	for i := range n {
		for _, v := range values(i) {
			ends[v]++
		}
	}
	sum := int32(0)
	for v, count := range ends {
		ends[v], sum = sum, sum+count // the start of the list; the loop below moves it to the end
	}
	for i := range n {
		for _, v := range values(i) {
			lists[ends[v]] = int32(i)
			ends[v]++
		}
	}
}

// ListOf returns the list of v that invert has written.
func ListOf(lists, ends []int32, v int) []int32 {
	first := int32(0)
	if v > 0 {
		first = ends[v-1]
	}
	return lists[first:ends[v]]
}
