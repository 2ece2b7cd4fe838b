// Package vocab has the specs of the ops over a vocabulary: Embedding, CrossEntropy and TopK, and of their gradients.
package vocab
