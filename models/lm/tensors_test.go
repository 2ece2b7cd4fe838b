package lm_test

import (
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/lm/gguf"
	"github.com/gorgonia-nsa/nsa/models/lm/pretrained"
)

var _, _ lm.Tensors = (*gguf.File)(nil), (*pretrained.Folder)(nil)
