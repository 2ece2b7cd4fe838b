package driver

// Functions has a field for each function of the library that the package calls.
type Functions = functions
