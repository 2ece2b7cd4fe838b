// Package vocab has the specs of the ops over a vocabulary: Embedding and CrossEntropy, and of their gradients.
package vocab
