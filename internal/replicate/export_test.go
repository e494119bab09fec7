package replicate

// CappedStarts gives tests what follow asks before it begins.
var CappedStarts = (*Job).cappedStarts
