package corpus

import "errors"

func readTokenizer(path, separator string) (vocabulary, error) {
	return nil, errors.New("tokenizer: not built yet")
}
