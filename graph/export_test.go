package graph

// Variables returns the names of the environment variables.
func Variables() (names []string) {
	for _, v := range variables() {
		names = append(names, v.name)
	}
	return names
}
