// Package compress has the specs of phi, which makes a key or value of each compression block: Mean and MLP.
package compress
