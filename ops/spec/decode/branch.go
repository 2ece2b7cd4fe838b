package decode

// Branch is a branch of an NSA layer. Its number is its index in the order of inputs, gates and counts.
type Branch int

// The branches. Dense attention counts as the window branch.
const (
	Compressed Branch = iota
	Selected
	Window
)

// NumBranches is the number of branches of NSA.
const NumBranches = 3

// BranchNames returns the name of each Branch.
func BranchNames() [NumBranches]string {
	return [...]string{Compressed: "compressed", Selected: "selected", Window: "window"}
}

// Branches is a set of branches: bit b stands for Branch b.
type Branches uint8

// BranchesOf returns the set of the branches in list. It ignores numbers that are no branch.
func BranchesOf(list ...Branch) (s Branches) {
	for _, b := range list {
		if b >= 0 && b < NumBranches {
			s |= 1 << b
		}
	}
	return s
}

// Has reports whether b is in the set. A number that is no branch is in none.
func (s Branches) Has(b Branch) bool { return b >= 0 && b < NumBranches && s>>b&1 == 1 }
