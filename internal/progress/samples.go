package progress

import "time"

// figures are counts at one moment, or their rates a second.
type figures struct{ docs, copied, operations, opBytes, cpu float64 }

// sample is what had been done at one moment.
type sample struct {
	at time.Time
	figures
	shards  []ShardDone
	routers []RouterDone
}

// mostSamples reach back ten seconds.
const mostSamples = 11

// Sample notes the counters of this moment; it is to be called each second.
func (p *Progress) Sample() {
	x := sample{at: p.o.Now(), figures: figures{cpu: p.o.Usage().CPUSeconds}}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.copying != nil {
		docs, bytes := p.copying.Copied()
		x.docs, x.copied = float64(docs), float64(bytes)
	}
	x.operations = float64(p.before.Operations)
	if p.sink != nil {
		st := p.sink.Stats()
		x.operations += float64(st.Operations)
		x.opBytes = float64(st.Bytes)
	}
	x.shards, x.routers = p.shardsDone(), p.routersDone()
	p.samples = append(p.samples[max(len(p.samples)+1-mostSamples, 0):], x)
}

// perSecond are the rates over what the samples hold.
func perSecond(all []sample) figures {
	if len(all) < 2 {
		return figures{}
	}
	oldest, newest := all[0], all[len(all)-1]
	d := newest.at.Sub(oldest.at).Seconds()
	if d <= 0 {
		return figures{}
	}
	per := func(a, b float64) float64 { return max((b-a)/d, 0) }
	return figures{per(oldest.docs, newest.docs), per(oldest.copied, newest.copied), per(oldest.operations, newest.operations),
		per(oldest.opBytes, newest.opBytes), per(oldest.cpu, newest.cpu)}
}
